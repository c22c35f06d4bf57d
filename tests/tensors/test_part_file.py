"""Names of files that are not whole yet."""

from __future__ import annotations

from pathlib import Path

from npu_rl.weights.tensors.npu_rl_tensors.part_file import part_of


def test_no_two_processes_write_to_one_unfinished_file(tmp_path: Path) -> None:
    one, other = part_of(tmp_path / "a.safetensors"), part_of(tmp_path / "a.safetensors")
    assert one != other
    for part in (one, other):  # what is removed after an interruption
        assert part.parent == tmp_path and part.match("a.safetensors.*.part")
