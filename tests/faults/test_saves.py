"""A save that is cut off, by verl's own checkpoint managers at all four pins: always resumable, one save lost at most.

Forty kills: five seeds for each pin and strategy. A seed chooses the rank and the system call.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from npu_rl.standins import INJECTED
from tests.code_trees import archive
from tests.patchsets.conftest import Patched, patched  # noqa: F401  a fixture
from tests.support import ROOT, byte_code

pytestmark = [pytest.mark.rehearsal]

RUNNER = Path(__file__).with_name("run_saves.py")
MANAGER = "verl/utils/checkpoint/megatron_checkpoint_manager.py"
OLD = "54c9b7364c2d188b2ba4107404cfa3c2b446df19"
PINS = {
    OLD: "core_r0.8.0",
    "55e3c5b": "core_v0.12.1",
    "796871d7d092f7cbc6a64e7f4a3796f7a2217f5e": "core_v0.12.1",
}


def cut_off(code: Path, strategy: str, folder: Path, keep: int, *seeds: str, old: bool = False) -> list[Any]:
    """What is left of each run, and what went on from it."""
    for needed in ("torch", "transformers", "omegaconf"):
        pytest.importorskip(needed)
    words = [str(code / "verl"), strategy, str(int(old)), str(folder / "saved"), str(keep), *seeds]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (INJECTED, code, ROOT))),
        **byte_code(),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(RUNNER), *words],
        env=env, capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    if "OSError: [Errno 1] ptrace" in done.stderr:
        pytest.skip("processes can't be traced here")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found: list[Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def require_resumable(runs: list[Any]) -> None:
    # The number of a rank's calls differs between runs, so that a late one may come after its save has ended.
    kills = [one for one in runs if one["seed"] != "disk"]
    assert not kills or any(one["killed"] for one in kills), "a save was cut off"
    for one in runs:
        assert one["killed"] or one["seed"] == "disk" or one["resumed"] == 4, "not cut off, so whole"
        assert not (one["killed"] and one["seed"] == "disk"), one
        assert one["resumed"] in (3, 4), one  # the fourth save was cut off
        assert one["error"] == "", "the step that is whole loads, each value as it was saved"
        assert one["next"] == "", "and the next is whole, over what the crash had left"


def seeds(strategy: str) -> list[str]:
    return [f"{strategy}-{number}" for number in range(5)]


@pytest.mark.pypi
@pytest.mark.parametrize("strategy", ["fsdp", "megatron"])
def test_saves_of_0_5_0(strategy: str, code_tree: Path, tmp_path: Path) -> None:
    require_resumable(cut_off(code_tree, strategy, tmp_path, 2, *seeds(strategy), "disk"))


@pytest.mark.pypi
def test_the_trainers_own_one_leaves_nothing(code_tree: Path, tmp_path: Path) -> None:
    """What checkpoint.keep: 1 was before: verl deletes the only checkpoint, then writes."""
    (one,) = cut_off(code_tree, "fsdp", tmp_path, 1, "disk")
    assert one["resumed"] is None and set(one["steps"]) == {"1", "2", "3", "4"}
    assert all(one["steps"].values())


@pytest.mark.upstreams
@pytest.mark.parametrize("pin", PINS)
@pytest.mark.parametrize("strategy", ["fsdp", "megatron"])
def test_saves_of_upstreams_pins(
    pin: str,
    strategy: str,
    upstreams: Path,
    patched: Patched,  # noqa: F811
    tmp_path: Path,
) -> None:
    code = archive(upstreams / "volcengine+verl" / "repo", pin, "verl", tmp_path / "code")
    archive(upstreams / "NVIDIA+Megatron-LM" / "repo", f"refs/tags/{PINS[pin]}", "megatron/core", code)
    if pin == OLD:
        (code / MANAGER).write_bytes(patched("verl/54c9b73", MANAGER, (code / MANAGER).read_bytes()))
    require_resumable(cut_off(code, strategy, tmp_path, 2, *seeds(strategy), "disk", old=pin == OLD))
