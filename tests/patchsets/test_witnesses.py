"""Each witness on each bundled tree: no fault with the patches for it, and the fault without one or switched off.

The verdict by the tree's texts says the same each time. A patch names its witnesses in Verified-By.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from npu_rl.common.bundled import bundled_manifests, data_root, witnesses_root
from npu_rl.recipes.faults.fault import known_faults
from npu_rl.recipes.faults.verdict import ABSENT, Verdict, judge_tree
from npu_rl.recipes.faults.witness_run import HAS_FAULT, HAS_NONE, NOT_RUN, run_witness
from npu_rl.stack.compose.assemble import code_paths, patches_by_file
from npu_rl.stack.lock import lock_model
from npu_rl.stack.manifest.load_manifest import load_manifest
from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.patch_header import Header, parse_header
from tests.patchsets.flagship_tree import tree
from tests.support import byte_code

FAULTS = {fault.id: fault for fault in known_faults()}
PATCHSETS = data_root() / "patchsets"
QUICKSTART = "quickstart"  # the one that comes from PyPI alone


class Case(NamedTuple):
    """A witness on a manifest's tree, without a patch or with its adaptation switched off; else with all."""

    manifest: str
    witness: str
    patch: str = ""
    off: str = ""

    def __str__(self) -> str:
        change = f"-off-{self.off}" if self.off else f"-without-{self.patch}" if self.patch else ""
        return f"{self.manifest}-{self.witness}{change}"


@cache
def lock_of(manifest: str) -> lock_model.Lock:
    return lock_model.read(lock_model.lock_path(load_manifest(manifest).path))


@cache
def header_of(patch: str) -> Header:
    return parse_header(parse_patch((PATCHSETS / patch).read_bytes(), name=patch).header)


def witnesses_of(patch: str) -> list[str]:
    return [Path(name).stem for name in header_of(patch).tests]


def bundled_patches(manifest: str) -> list[str]:
    return [patch.file for _, patch in lock_of(manifest).patches() if ":" not in patch.file]


def cases() -> Iterator[Case]:
    for manifest in bundled_manifests():
        named = {name: None for patch in bundled_patches(manifest) for name in witnesses_of(patch)}
        for name in {**named, **dict.fromkeys(FAULTS)}:
            yield Case(manifest, name)
        for patch in bundled_patches(manifest):
            for name in witnesses_of(patch):
                yield Case(manifest, name, patch)
                for slug in header_of(patch).switches:
                    yield Case(manifest, name, patch, slug)


Lay = Callable[[str], Path]


@pytest.fixture(scope="module")
def lay(tmp_path_factory: pytest.TempPathFactory) -> Lay:
    """The code of a manifest with all patches, by the manifest's name."""

    @cache
    def laid(manifest: str) -> Path:
        names = [name for name, one in lock_of(manifest).components.items() if one.take]
        return lay_tree(tmp_path_factory.mktemp("tree") / "code", names, manifest)

    return laid


def lay_tree(folder: Path, components: list[str], manifest: str, without: str | None = None) -> Path:
    named = os.environ.get("NPU_RL_UPSTREAMS")
    if not named and manifest != QUICKSTART:
        pytest.skip("NPU_RL_UPSTREAMS names no folder with the real upstreams")
    upstreams = Path(named) if named else None
    return tree(upstreams, folder, components, manifest=manifest, without=without)


@contextmanager
def taken_back(code: Path, manifest: str, patch: str, folder: Path) -> Iterator[None]:
    """A tree without one of its patches, as long as this lasts."""
    lock = lock_of(manifest)
    ((name, locked),) = [(name, one) for name, one in lock.patches() if one.file == patch]
    other = lay_tree(folder / "without", [name], manifest, patch.rpartition("/")[2])
    files = [path for file in locked.files for path in code_paths(lock.components[name], file)]
    kept = {file: (code / file).read_bytes() if (code / file).is_file() else None for file in files}
    try:
        for file in files:
            put(code / file, (other / file).read_bytes() if (other / file).is_file() else None)
        yield
    finally:
        for file, data in kept.items():
            put(code / file, data)


def put(path: Path, data: bytes | None) -> None:
    if data is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(data)


@pytest.mark.rehearsal
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            one, id=str(one), marks=pytest.mark.pypi if one.manifest == QUICKSTART else pytest.mark.upstreams
        )
        for one in cases()
    ],
)
def test_the_witness_shows_the_fault_without_the_patch_alone(case: Case, lay: Lay, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = lay(case.manifest)
    usage = tmp_path / "usage"
    usage.mkdir()
    variables = {**byte_code(), "NPU_RL_USAGE": str(usage)}
    if case.off:
        variables[f"NPU_RL_{case.off.upper().replace('-', '_')}"] = "0"
    patched = [one for one in bundled_patches(case.manifest) if case.witness in witnesses_of(one)]
    if case.patch and not case.off:
        with taken_back(code, case.manifest, case.patch, tmp_path):
            has_fault = agree(case, code, variables)
    else:
        if case.witness in FAULTS and not patched and verdict_of(case, code).state == ABSENT:
            pytest.skip(f"{case.manifest} does not have its code")
        has_fault = agree(case, code, variables)
    assert has_fault or not case.patch, "the same without the patch"
    assert not (patched and has_fault) or case.patch, f"in spite of {patched}"
    slugs = {slug for one in patched for slug in header_of(one).switches}
    used = {line.split()[1] for file in usage.iterdir() for line in file.read_text().splitlines()}
    assert case.patch or not slugs or used, "no hook of the patch did anything"
    assert not case.off or case.off not in used


def verdict_of(case: Case, code: Path) -> Verdict:
    patches = patches_by_file(lock_of(case.manifest))
    return judge_tree(code, [FAULTS[case.witness]], [case.off] if case.off else [], patches)[0]


def agree(case: Case, code: Path, variables: dict[str, str]) -> bool:
    """Whether the tree has the fault, by the witness and, for a known one, by the texts."""
    found = run_witness(witnesses_root() / f"{case.witness}.py", code, sys.executable, variables)
    missing = re.match(r"ModuleNotFoundError: No module named '(\w+)", found.reason)
    if missing and not (code / missing[1]).is_dir():
        pytest.skip(f"could not import {missing[1]!r}")
    assert found.state != NOT_RUN, found.reason
    if case.witness in FAULTS:
        verdict = verdict_of(case, code)
        wanted = HAS_FAULT if verdict.is_open else HAS_NONE
        assert found.state == wanted, f"{verdict.state} by the texts; {found}"
    return found.state == HAS_FAULT


# Later lines of upstream's, with which the witness of a fault that no patch of ours ends shows none.
FIXES = {
    "data-parallel-graph-hang": (  # vllm-ascend 99bf25af76
        "verl-npu-plugin",
        "vllm_ascend/worker/model_runner_v1.py",
        "        # Padding for DP\n",
        "        num_pad, num_tokens_across_dp_native = self.get_dp_padding(num_tokens)\n",
        "        (num_tokens, num_tokens_across_dp, with_prefill,\n",
    ),
    "sleep-loses-expert-map": (  # vllm-ascend 032b3f4a04, in another file
        "today",
        "vllm_ascend/ops/fused_moe/fused_moe.py",
        "",
        '        log2phy = self.__dict__.pop("log2phy")\n        self.register_buffer("log2phy", log2phy)\n',
        "        self.dynamic_eplb = eplb_config.dynamic_eplb and (self.log2phy is not None)\n",
    ),
}


@pytest.mark.rehearsal
@pytest.mark.upstreams
@pytest.mark.parametrize("name", FIXES)
def test_upstreams_fix_ends_a_fault_without_a_patch(name: str, lay: Lay) -> None:
    pytest.importorskip("torch")
    manifest, file, before, added, after = FIXES[name]
    path, script = lay(manifest) / file, witnesses_root() / f"{name}.py"
    text = path.read_text()
    assert text.count(before + after) == 1
    try:
        path.write_text(text.replace(before + after, before + added + after))
        found = run_witness(script, lay(manifest), sys.executable, byte_code())
    finally:
        path.write_text(text)
    assert found.state == HAS_NONE, found
    assert run_witness(script, lay(manifest), sys.executable, byte_code()).state == HAS_FAULT
