"""The patchset verl/796871d: verl's own modules, after verl_npu's patches."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.faults.fault import WITNESSES
from tests.patchsets.flagship_tree import run, used
from tests.patchsets.test_verl_0_5_0 import run as run_hf_rollout

pytest.importorskip("torch")
pytest.importorskip("tensordict")
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

COMPONENTS = ["verl", "Megatron-LM"]
RUNNER = Path(__file__).with_name("run_verl_plugin.py")
DAPO = WITNESSES / "dapo_splits_groups.py"
STEPS = WITNESSES / "dapo_counts_generations.py"
MANIFEST = "verl-npu-plugin"
SEGMENTS = "workers-expandable-segments"
OFF, ON = "expandable_segments:False", "expandable_segments:True"


def test_the_kernels_are_imported_when_called(patched_tree: Path) -> None:
    assert run(RUNNER, patched_tree, "kernels") == {"imported": "yes", "called": "0 active drivers"}


@pytest.mark.parametrize("backend", ["fsdp", "megatron"])
def test_segments_are_switched_around_each_manager(patched_tree: Path, backend: str, tmp_path: Path) -> None:
    """In the worker's process, and on again where the engine can't be woken."""
    found = run(
        RUNNER, patched_tree, backend, usage=tmp_path / "usage", NPU_RL_WORKERS_EXPANDABLE_SEGMENTS="1"
    )
    assert found["worker"] == [OFF, "wake up", ON, "sleep", ON]
    assert found["here"] == found["elsewhere"] == []
    assert used(tmp_path / "usage", SEGMENTS) == 3


@pytest.mark.parametrize("backend", ["fsdp", "megatron"])
def test_segments_are_upstreams_while_switched_off(patched_tree: Path, backend: str, tmp_path: Path) -> None:
    found = run(RUNNER, patched_tree, backend, usage=tmp_path / "usage", EXPANDABLE_SEGMENTS="True")
    assert found["worker"] == ["wake up", "sleep"]
    assert used(tmp_path / "usage", SEGMENTS) == 0


def test_dapo_trains_on_whole_groups(patched_tree: Path, tmp_path: Path) -> None:
    found = run(DAPO, patched_tree, usage=tmp_path / "usage")
    assert found == {"fault": False, "kept": "acacac"}
    assert used(tmp_path / "usage", "dapo-whole-groups") == 1
    assert run(DAPO, patched_tree, NPU_RL_DAPO_WHOLE_GROUPS="0") == {"fault": True, "kept": "acdacd"}


def test_dapo_counts_its_updates(patched_tree: Path, tmp_path: Path) -> None:
    """Filtered and resumed runs end with their last step, and step 3 is saved where the data ends after it."""
    found = run(STEPS, patched_tree, usage=tmp_path / "usage")
    assert found == {"fault": False, "filtered": [1, 2, 3, 4], "resumed": [5, 6], "saved": [2, 3]}
    assert used(tmp_path / "usage", "dapo-steps") == 8 + 2 + 3  # one for each generated batch
    off = run(STEPS, patched_tree, NPU_RL_DAPO_STEPS="0")
    assert off == {"fault": True, "filtered": [1, 2], "resumed": [5, 6, 7, 8, 9, 10], "saved": [2]}


def test_one_response_per_row(patched_tree: Path, tmp_path: Path) -> None:
    """The witness hf_rollout_repeats_twice.py, as test_verl_0_5_0 runs it."""
    rollout = patched_tree / "verl/workers/rollout"
    files = [(rollout / name).read_bytes() for name in ("hf_rollout.py", "base.py")]
    right = run_hf_rollout(tmp_path / "on", *files, "sample", "torch")
    assert (right["given"], right["asked"], set(right["rows"].values())) == (6, [1], {6})
    off = run_hf_rollout(tmp_path / "off", *files, "sample", "torch", NPU_RL_HF_ROLLOUT_REPEATS_ONCE="0")
    assert off["asked"] == [3]
