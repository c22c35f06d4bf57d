"""The requirements of the bundled manifests: one set each, and every bound that it breaks is named."""

from __future__ import annotations

import re

import pytest

from npu_rl.bundled import bundled_manifests
from npu_rl.manifest.load_manifest import load_manifest

STACKS = sorted(name for name in bundled_manifests() if name.startswith("deepseek"))
NAME = re.compile(r"[A-Za-z0-9._-]+")


def names(requirements: tuple[str, ...]) -> list[str]:
    found = [NAME.match(requirement) for requirement in requirements]
    return [match[0].lower().replace("_", "-") for match in found if match]


@pytest.mark.parametrize("name", STACKS)
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
