"""Both verdicts agree, that of a tree's texts and that of the witness: with the patch of each fault and without."""

from __future__ import annotations

import shutil
import sys
from functools import cache
from pathlib import Path

import pytest

from npu_rl.bundled import bundled_manifests, runtime_root
from npu_rl.faults.fault import KnownFault, known_faults
from npu_rl.faults.verdict import ABSENT, judge_tree
from npu_rl.lock import lock_model
from npu_rl.manifest.load_manifest import load_manifest
from npu_rl.training.witness_run import HAS_FAULT, HAS_NONE, run_witness
from tests.patchsets.flagship_tree import tree

pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal

FAULTS = {fault.id: fault for fault in known_faults()}
HF_ROLLOUT = "verl/workers/rollout/hf_rollout.py"
LIMITED = {
    "pai-megatron-deepseek-v3",
    "pai-megatron-deepseek-v3-mcore-250908",
}  # submodules, which `tree` can't lay


def agree(fault: KnownFault, code: Path, *off: str) -> bool:
    """Whether the tree has the fault, by both. Switches of `off` are off in the witness, too."""
    (verdict,) = judge_tree(code, [fault], off)
    assert verdict.state != ABSENT
    variables = {f"NPU_RL_{slug.upper().replace('-', '_')}": "0" for slug in off}
    shown = run_witness(fault, code, sys.executable, variables)
    wanted = HAS_FAULT if verdict.is_open else HAS_NONE
    assert shown.state == wanted, f"{verdict.state} by the texts; {shown}"
    return verdict.is_open


# -- five pairs from PyPI alone


@pytest.fixture(scope="module")
def quickstart(code_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the quickstart's code, since a witness runs in it."""
    return Path(shutil.copytree(code_tree, tmp_path_factory.mktemp("faults") / "code"))


@pytest.mark.pypi
@pytest.mark.parametrize("off", [(), ("hf-rollout-repeats-once",)])
def test_a_patched_fault_of_the_quickstart(quickstart: Path, off: tuple[str, ...]) -> None:
    assert agree(FAULTS["hf-rollout-repeats-twice"], quickstart, *off) is bool(off)


@pytest.mark.pypi
def test_a_fault_without_its_patch(quickstart: Path, tmp_path: Path) -> None:
    """verl's own file, as the sdist has it: the hunks of the patch are taken back."""
    code = tmp_path / "code"
    (code / HF_ROLLOUT).parent.mkdir(parents=True)
    for name in ("hf_rollout.py", "base.py"):
        shutil.copy(
            quickstart / HF_ROLLOUT.replace("hf_rollout.py", name), (code / HF_ROLLOUT).with_name(name)
        )
    shutil.copytree(runtime_root(), code / "npu_rl_runtime")
    text = (code / HF_ROLLOUT).read_text()
    text = text.replace("from npu_rl_runtime.hf_rollout import answers_per_row\n", "")
    (code / HF_ROLLOUT).write_text(text.replace("answers_per_row(self.config.n)", "self.config.n"))
    assert agree(FAULTS["hf-rollout-repeats-twice"], code)


@pytest.mark.pypi
@pytest.mark.parametrize("without", [None, "kv-cache-reuse"])
def test_vllms_own_sdist(quickstart: Path, tmp_path: Path, without: str | None) -> None:
    """The quickstart's verl calls nothing of it; its hook in verl's rollout is left out of the fault's code here."""
    for needed in ("msgspec", "gguf", "blake3"):  # what vLLM imports
        pytest.importorskip(needed)
    fault = FAULTS["kv-cache-resized"]
    code = tree(None, tmp_path / "code", ["vllm"], without=without, laid=quickstart)
    assert agree(fault._replace(code=fault.code[:1]), code) is bool(without)


# -- every fault on every bundled tree that has its code


@cache
def patches_of(manifest: str) -> frozenset[str]:
    lock = lock_model.read(lock_model.lock_path(load_manifest(manifest).path))
    return frozenset(patch.file for _, patch in lock.patches())


def pairs() -> list[tuple[str, str, str]]:
    """Manifest, fault and its patch there; "" for each fault on the tree with all patches."""
    found = []
    for manifest in bundled_manifests():
        if manifest in LIMITED or manifest == "quickstart":
            continue
        for fault in FAULTS.values():
            found.append((manifest, fault.id, ""))
            names = [
                f"{name}.patch"
                for ending in fault.ended
                if ending.is_patch
                for name in ending.by.removeprefix("patch ").split(" or ")
            ]
            found += [(manifest, fault.id, name) for name in names if name in patches_of(manifest)]
    return found


@pytest.fixture(scope="module")
def trees(upstreams: Path, tmp_path_factory: pytest.TempPathFactory) -> object:
    @cache
    def lay(manifest: str, without: str) -> Path:
        lock = lock_model.read(lock_model.lock_path(load_manifest(manifest).path))
        components = [component for component, locked in lock.components.items() if locked.take]
        folder = tmp_path_factory.mktemp("tree") / "code"
        return tree(upstreams, folder, components, without=without or None, manifest=manifest)

    return lay


@pytest.mark.upstreams
@pytest.mark.parametrize(("manifest", "name", "patch"), pairs())
def test_both_verdicts_agree(trees: object, manifest: str, name: str, patch: str) -> None:
    fault = FAULTS[name]
    code = trees(manifest, patch.rpartition("/")[2])  # type: ignore[operator]
    if judge_tree(code, [fault])[0].state == ABSENT:
        pytest.skip(f"{manifest} does not have its code")
    found = agree(fault, code)
    if patch:
        assert found, f"without {patch}"
