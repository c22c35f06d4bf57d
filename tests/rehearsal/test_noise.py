"""Random numbers of generations, of which none may repeat."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npu_rl.common.errors import NpuRlError
from npu_rl.rehearsal.training_checks.noise import require_different_noise


def record(folder: Path, process: int, rank: int, *noise: str) -> None:
    lines = [json.dumps({"rank": rank, "noise": one}) for one in noise]
    (folder / f"noise-host-{process}.jsonl").write_text("\n".join(lines) + "\n")


def test_generations_that_differ_are_well(tmp_path: Path) -> None:
    record(tmp_path, 1, 0, "a", "b")
    record(tmp_path, 2, 1, "c", "d")
    with (tmp_path / "noise-host-2.jsonl").open("a") as file:
        file.write('{"rank": 1, "noi')  # a killed process
    require_different_noise(tmp_path)
    require_different_noise(tmp_path / "none")


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (("c", "c"), "Generation 2 of rank 1 draws the random numbers of generation 1 of rank 1"),
        (("a", "d"), "Generation 1 of rank 1 draws the random numbers of generation 1 of rank 0"),
    ],
)
def test_a_step_or_a_rank_that_draws_anothers_is_named(
    second: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    record(tmp_path, 1, 0, "a", "b")
    record(tmp_path, 2, 1, *second)
    with pytest.raises(NpuRlError) as caught:
        require_different_noise(tmp_path)
    assert caught.value.what == said
