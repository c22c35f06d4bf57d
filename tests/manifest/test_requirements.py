"""The requirements of the bundled manifests: one set each, and every bound that it breaks is named."""

from __future__ import annotations

import re

import pytest

from npu_rl.bundled import bundled_manifests
from npu_rl.manifest.load_manifest import load_manifest

STACKS = sorted(name for name in bundled_manifests() if name.startswith("deepseek"))
OWN_VERSIONS = "mindspeed-rl-grpo"  # its document names versions that the quickstart's set has newer
NAME = re.compile(r"[A-Za-z0-9._-]+")


def names(requirements: tuple[str, ...]) -> list[str]:
    found = [NAME.match(requirement) for requirement in requirements]
    return [match[0].lower().replace("_", "-") for match in found if match]


@pytest.mark.parametrize("name", [*STACKS, OWN_VERSIONS])
def test_each_package_once_and_each_broken_bound_named(name: str) -> None:
    manifest = load_manifest(name).manifest
    wanted = names(manifest.requirements)
    assert len(wanted) == len(set(wanted)) == len(manifest.requirements) > 60
    for override in manifest.overrides:
        assert override.requirement in manifest.requirements
        assert any(component in override.breaks for component in manifest.components), override.breaks
        assert re.search(r"wants \S*[0-9]", override.breaks) and override.why


@pytest.mark.parametrize("name", STACKS)
def test_the_versions_that_were_run_together_are_the_quickstarts(name: str) -> None:
    """But for torch, which is the host's there."""
    together = [
        one for one in load_manifest("quickstart").manifest.requirements if not one.startswith("torch==")
    ]
    pins = {
        re.sub(r"\[.*\]", "", one).partition("==")[0]: one
        for one in load_manifest(name).manifest.requirements
    }
    for one in together:
        package, _, version = one.partition("==")
        assert version in pins[package] or "==" not in pins[package], package


def test_the_versions_of_mindspeed_rl_stand_and_antlr_is_explained() -> None:
    """requirements.txt of MindSpeed-RL 62e9928, which the document installs last, and the line after it."""
    manifest = load_manifest(OWN_VERSIONS).manifest
    assert {
        "ray[default]==2.42.1",
        "transformers==4.48.2",
        "tensordict==0.1.2",
        "hydra-core==1.3.2",
        "numpy==1.26.4",
        "antlr4-python3-runtime==4.7.2",
    } <= set(manifest.requirements)
    (antlr,) = [one for one in manifest.overrides if one.requirement.startswith("antlr4")]
    assert all(package in antlr.breaks for package in ("MindSpeed-LLM", "hydra-core", "omegaconf"))
    assert "latex2sympy2" in antlr.why
