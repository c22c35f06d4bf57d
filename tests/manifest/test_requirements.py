"""The requirements of the bundled manifests: one set each, and every bound that it breaks is named."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from npu_rl.common.bundled import bundled_manifests
from npu_rl.stack.lock import lock_model
from npu_rl.stack.manifest.load_manifest import load_manifest
from npu_rl.stack.manifest.schema import Host
from npu_rl.stack.requirements.bound_check import compare_bounds
from tests.support import index_env, ok, rewrites, run_cli, run_program

STACKS = sorted(name for name in bundled_manifests() if name.startswith("deepseek"))
OF_TODAY = ("newest", "today")
OWN_VERSIONS = "mindspeed-rl-grpo"  # its document names versions that the quickstart's set has newer
COMPUTED = {
    "vllm",
    "transformers",
}  # whose setup.py asks for the device, or looks up a table that it computes
NAME = re.compile(r"[A-Za-z0-9._-]+")


def names(requirements: tuple[str, ...]) -> list[str]:
    found = [NAME.match(requirement) for requirement in requirements]
    return [match[0].lower().replace("_", "-") for match in found if match]


def of_the_host(host: Host) -> list[str]:
    """The packages of a host, as requirements."""
    packages = ("torch", "torch_npu", "torchvision", "torchaudio", "triton_ascend")
    return [f"{name.replace('_', '-')}=={getattr(host, name)}" for name in packages if getattr(host, name)]


@pytest.mark.parametrize("name", [*STACKS, *OF_TODAY, OWN_VERSIONS])
def test_each_package_once(name: str) -> None:
    manifest = load_manifest(name).manifest
    wanted = names(manifest.requirements)
    assert len(wanted) == len(set(wanted)) == len(manifest.requirements) > 60


@pytest.mark.parametrize("name", sorted(bundled_manifests()))
def test_each_broken_bound_is_named_as_its_file_has_it(name: str) -> None:
    """And nothing else: an override of another file or bound, or of one that holds, is an error."""
    loaded = load_manifest(name)
    found = compare_bounds(loaded, lock_model.read(lock_model.lock_path(loaded.path)))
    assert found.errors == []
    assert found.compared >= (30 if loaded.manifest.device == "npu" else 9), found
    assert all("not read, so not compared: setup.py" in note for note in found.notes)
    assert {note.partition(":")[0] for note in found.notes} <= COMPUTED


SET_A = ("numpy==1.26.4", "transformers==4.57.6", "tensordict==0.11.0")


def of_set_a(folder: Path) -> Path:
    """`newest` with the versions that once locked without a word, and its overrides."""
    kept = [
        one for one in load_manifest("newest").manifest.requirements if names((one,))[0] not in names(SET_A)
    ]
    text = {
        "schema": 1,
        "name": "mine",
        "title": "Set A",
        "extends": "newest",
        "requirements": [*kept, *SET_A],
    }
    path = folder / "mine.yaml"
    path.write_text(json.dumps(text))
    return path


BROKEN = [
    'transformers==4.57.6 breaks "transformers>=5.5.3,!=5.6.0,<5.11" of verl (requirements.txt)',
    'tensordict==0.11.0 breaks "tensordict>=0.8.0,<=0.10.0,!=0.9.0" of verl (requirements.txt)',
    'tensordict==0.11.0 breaks "tensordict>=0.8.0,<=0.10.0,!=0.9.0" of verl (requirements-npu.txt)',
    'transformers==4.57.6 breaks "transformers>=5.5.3,!=5.6.0,<5.11" of verl (setup.py)',
    'tensordict==0.11.0 breaks "tensordict>=0.8.0,<=0.10.0,!=0.9.0" of verl (setup.py)',
    'transformers==4.57.6 breaks "transformers==5.5.4" of vllm-ascend (requirements.txt)',
]


@pytest.mark.upstreams
@pytest.mark.pypi
def test_set_a_is_refused_by_the_real_files(tmp_path: Path, upstreams: Path) -> None:
    env = {**index_env(tmp_path), "NPU_RL_REWRITE": rewrites(upstreams, "newest")}
    of_set_a(tmp_path)
    locked = run_cli(["lock", "-m", "./mine.yaml"], env, tmp_path, timeout=600)
    assert locked.returncode == 0 and all(line in locked.stderr for line in BROKEN), locked.stderr
    done = run_cli(["lock", "--check", "--offline", "-m", "./mine.yaml"], env, tmp_path)
    assert done.returncode == 1 and all(line in done.stderr for line in BROKEN), done.stderr


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


@pytest.mark.parametrize("name", OF_TODAY)
def test_packages_of_the_host_are_not_required_as_well(name: str) -> None:
    manifest = load_manifest(name).manifest
    hosts = names(tuple(of_the_host(manifest.host)))
    assert len(hosts) == 5 and not set(hosts) & set(names(manifest.requirements))


@pytest.mark.parametrize("name", OF_TODAY)
@pytest.mark.parametrize("machine", ["aarch64", "x86_64"])
@pytest.mark.pypi
@pytest.mark.second
def test_the_set_resolves(name: str, machine: str, tmp_path: Path) -> None:
    """For Python 3.11, without the packages of the host; needs uv and the index."""
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed")
    manifest = load_manifest(name).manifest
    (tmp_path / "all.in").write_text("\n".join(manifest.requirements))
    (tmp_path / "host.txt").write_text("\n".join(names(tuple(of_the_host(manifest.host)))))
    platform = ["--python-version", "3.11", "--python-platform", f"{machine}-unknown-linux-gnu"]
    compiling = [uv, "pip", "compile", "all.in", "--excludes", "host.txt", *platform, "--no-header"]
    ok(run_program(compiling, cwd=tmp_path, timeout=300))


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
    (antlr,) = [one for one in manifest.overrides if one.package.startswith("antlr4")]
    assert (antlr.component, antlr.bound) == ("MindSpeed-LLM", "==4.9.*")
    assert all(word in antlr.why for word in ("latex2sympy2", "hydra-core", "omegaconf"))
