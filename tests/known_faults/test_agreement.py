"""Both verdicts agree, that of a tree's texts and that of the witness: with the patch of each fault and without."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from npu_rl.common.bundled import bundled_manifests, data_root, runtime_root
from npu_rl.recipes.faults.fault import KnownFault, known_faults
from npu_rl.recipes.faults.verdict import ABSENT, judge_tree
from npu_rl.stack.lock import lock_model
from npu_rl.stack.manifest.load_manifest import load_manifest
from npu_rl.training.run.witness_run import HAS_FAULT, HAS_NONE, run_witness
from tests.patchsets.flagship_tree import tree
from tests.support import byte_code, git

pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal

FAULTS = {fault.id: fault for fault in known_faults()}
HF_ROLLOUT = "verl/workers/rollout/hf_rollout.py"


def agree(fault: KnownFault, code: Path, *off: str) -> bool:
    """Whether the tree has the fault, by both. Switches of `off` are off in the witness, too."""
    (verdict,) = judge_tree(code, [fault], off)
    assert verdict.state != ABSENT
    variables = {f"NPU_RL_{slug.upper().replace('-', '_')}": "0" for slug in off}
    shown = run_witness(fault, code, sys.executable, variables | byte_code())
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


def ending_patches(fault: KnownFault) -> list[str]:
    names = [
        name
        for ending in fault.ended
        if ending.is_patch
        for name in ending.by.removeprefix("patch ").split(" or ")
    ]
    return [f"{name}.patch" for name in names]


def pairs() -> list[tuple[str, str, str]]:
    """Manifest, fault and its patch there that is left out; "" for each fault on the tree with all patches."""
    return [
        (manifest, fault.id, patch)
        for manifest in bundled_manifests()
        for fault in FAULTS.values()
        for patch in ("", *(name for name in ending_patches(fault) if name in patches_of(manifest)))
    ]


@pytest.fixture(scope="module")
def trees(
    upstreams: Path, quickstart: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """The code of a manifest with all patches, by the manifest's name."""

    @cache
    def lay(manifest: str) -> Path:
        if manifest == "quickstart":
            return quickstart
        return tree(
            upstreams, tmp_path_factory.mktemp("tree") / "code", components(manifest), manifest=manifest
        )

    return lay


def components(manifest: str) -> list[str]:
    lock = lock_model.read(lock_model.lock_path(load_manifest(manifest).path))
    return [component for component, locked in lock.components.items() if locked.take]


@pytest.mark.upstreams
@pytest.mark.pypi
@pytest.mark.parametrize(("manifest", "name", "patch"), pairs())
def test_both_verdicts_agree(
    manifest: str, name: str, patch: str, trees: Callable[[str], Path], upstreams: Path, tmp_path: Path
) -> None:
    """A tree that a patch for the fault is made for has its code, with the patch and without: that is not skipped."""
    fault = FAULTS[name]
    if patch:
        code = without(patch, manifest, trees, upstreams, tmp_path / "code")
        assert agree(fault, code), f"without {patch}"
        return
    code = trees(manifest)
    patched = [one for one in ending_patches(fault) if one in patches_of(manifest)]
    if not patched and judge_tree(code, [fault])[0].state == ABSENT:
        pytest.skip(f"{manifest} does not have its code")
    found = agree(fault, code)
    assert not (patched and found), f"{patched} is applied"


def without(patch: str, manifest: str, trees: Callable[[str], Path], upstreams: Path, folder: Path) -> Path:
    """The code of a manifest without one of its patches."""
    if manifest != "quickstart":
        name = patch.rpartition("/")[2]
        return tree(upstreams, folder, components(manifest), without=name, manifest=manifest)
    shutil.copytree(trees(manifest), folder, ignore=shutil.ignore_patterns(".git"))
    git("-C", str(folder), "apply", "-R", str(data_root() / "patchsets" / patch))
    return folder
