"""Saves that are cut off, by verl's own checkpoint managers: always resumable, one save lost at most.

Fifty kills in the third tier: five for each trainer at each of verl's pins (0.5.0 and those of four stacks), before a
change of the disk that a seed chooses among those of a save. What a killed process has written stays written: no test
for a host that loses power.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.python_roots import INJECTED, REHEARSAL
from tests.code_trees import archive
from tests.faults.tracer import Tracer
from tests.patchsets.flagship_tree import tree
from tests.support import ROOT, byte_code, run_program

pytestmark = [pytest.mark.rehearsal, pytest.mark.nightly]

RUNNER = Path(__file__).with_name("run_saves.py")
TREES = {
    "54c9b73": ("deepseek-v3-cann", ("verl", "Megatron-LM")),
    "55e3c5b": ("deepseek-r1-zero", ("verl", "Megatron-LM")),
    "796871d": ("verl-npu-plugin", ("verl", "Megatron-LM")),
}
PAI = {  # submodules of Pai-Megatron-Patch 7737a32f: package, commit, repository; no patch of ours touches their saves
    "verl": ("cccc2ef2c94e747578b75b58eb69625a0dd2f9bf", "volcengine+verl"),
    "megatron/core": ("6a6cd478839d90cf09a837adf8c79cbc844bc920", "NVIDIA+Megatron-LM"),
}
Run = dict[str, Any]


def cut_off(code: Path, strategy: str, folder: Path, *seeds: str, old: bool = False) -> list[Run]:
    """What is left of each run, and what went on from it."""
    for needed in ("torch", "transformers", "omegaconf"):
        pytest.importorskip(needed)
    if not Tracer.possible():
        pytest.skip("system calls are known by their numbers on x86-64 only")
    saved = folder / "saved"
    saved.mkdir()
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (INJECTED, REHEARSAL, code, ROOT))),
        **byte_code(),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    runner = [sys.executable, "-W", "ignore", RUNNER, code / "verl", strategy, int(old), saved, *seeds]
    done = run_program([*map(str, runner)], env=env, timeout=580)
    if "OSError: [Errno 1] ptrace" in done.stderr:
        pytest.skip("processes can't be traced here")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found: list[Run] = json.loads(done.stdout.strip().splitlines()[-1])
    assert [one["seed"] for one in found] == list(seeds)
    print(*map(json.dumps, found), sep="\n")  # `pytest -rP` shows each kill
    return found


def require_resumable(runs: list[Run]) -> None:
    for one in runs:
        assert (one["signal"], one["within"]) == (9, True), one
        assert one["steps"]["3"] == "", "the save before is whole"
        assert one["resumed"] == (4 if one["steps"]["4"] == "" else 3), one
        assert one["found"] == f"global_step_{one['resumed']}", "verl's own function finds it"
        assert one["error"] == "", "it loads, each value as it was saved"
        assert one["next"] == "", "and the next is whole, over what was left"
        if one["rank"] == 1:
            assert one["resumed"] == 3, "without all ranks' files the step is not whole"


def kills(pin: str, strategy: str) -> list[str]:
    return [f"kill-{pin}-{strategy}-{number}" for number in range(5)]


@pytest.mark.pypi
@pytest.mark.parametrize("strategy", ["fsdp", "megatron"])
def test_quickstart(code_tree: Path, tmp_path: Path, strategy: str) -> None:
    require_resumable(cut_off(code_tree, strategy, tmp_path, *kills("0.5.0", strategy)[::2]))


@pytest.mark.upstreams
@pytest.mark.parametrize("strategy", ["fsdp", "megatron"])
@pytest.mark.parametrize("pin", [*TREES, "cccc2ef"])
def test_each_pin(pin: str, strategy: str, upstreams: Path, tmp_path: Path) -> None:
    code = tmp_path / "code"
    if pin in TREES:
        manifest, components = TREES[pin]
        tree(upstreams, code, components, manifest=manifest)
    else:
        for package, (commit, repository) in PAI.items():
            archive(upstreams / repository / "repo", commit, package, code)
    runs = cut_off(code, strategy, tmp_path, *kills(pin, strategy), old=pin == "54c9b73")
    require_resumable(runs)
