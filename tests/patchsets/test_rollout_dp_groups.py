"""The patch rollout-dp-groups of patchset verl/55e3c5b: verl's own rollout in real worlds, vLLM's own groups."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.patchsets.flagship_tree import run, used

for needed in ("torch", "ray", "tensordict", "msgspec", "gguf", "blake3"):  # what verl and vLLM import
    pytest.importorskip(needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

COMPONENTS = ["verl", "vllm", "vllm-ascend"]
HERE = Path(__file__).parent
SLUG = "rollout-dp-groups"


def copies(
    code: Path, *, world: int, tensor: int, ascend: bool = False, **named: Any
) -> tuple[list[dict[str, Any]], list[int]]:
    """Per rank how its engine and worker found the others, or the error; and the ports at which somebody listened."""
    jobs = [{"tensor_model_parallel_size": tensor}]
    job = {"world": world, "meet": True, "ascend": ascend, "jobs": jobs}
    if not ascend:
        named["VLLM_PLUGINS"] = ""
    found = run(HERE / "run_vllm_rollout.py", code, json.dumps(job), npu=ascend, **named)
    ranks = [one.get("met", {"error": one.get("error")}) for (one,) in found["ranks"]]
    return ranks, found["occupied"]


@pytest.mark.parametrize(("tensor", "data"), [(2, 2), (1, 4)])
def test_the_copies_find_each_other(patched_tree: Path, tensor: int, data: int, tmp_path: Path) -> None:
    """Each knows its rank, and all hear it when one of them still has answers to write."""
    usage = tmp_path / "usage"
    ranks, occupied = copies(patched_tree, world=4, tensor=tensor, usage=usage, VLLM_DP_SIZE=str(data))
    assert used(usage, SLUG) == 4
    for rank, found in enumerate(ranks):
        copy, place = divmod(rank, tensor)
        assert found["tensor"] == [copy * tensor + other for other in range(tensor)]
        assert found["data"] == list(range(place, 4, tensor))
        assert found["expert"] == [0, 1, 2, 3]
        assert (found["size"], found["rank"], found["local"]) == (data, copy, copy)
        assert found["host"] == "127.0.0.1"
        assert found["agree"] is True
        assert found["unfinished"] == [False, True]
    ports = {tuple(found["data"]): {ranks[other]["port"] for other in found["data"]} for found in ranks}
    assert [len(one) for one in ports.values()] == [1] * tensor  # one per group of copies,
    chosen = set().union(*ports.values())
    assert len(chosen) == tensor  # no two of them the same,
    assert not chosen & set(occupied)  # and nobody else's: MASTER_PORT + 1 + i is occupied here


def test_on_the_platform_of_vllm_ascend(patched_tree: Path) -> None:
    """Its class of groups, not the one it replaces later; and its way to ask for the port, twice the same."""
    ranks, _ = copies(patched_tree, world=2, tensor=1, ascend=True, VLLM_DP_SIZE="2")
    assert [found["class"] for found in ranks] == ["GroupCoordinatorPatch"] * 2
    assert [(found["rank"], found["unfinished"], found["expert"]) for found in ranks] == [
        (0, [False, True], [0, 1]),
        (1, [False, True], [0, 1]),
    ]


def test_256_dies_are_one_expert_group(patched_tree: Path) -> None:
    """The flagship's rollout as every one of its ranks: TP2 x DP128 = EP256, asked for in the same order by all."""
    found = run(
        HERE / "run_dp_layout.py", patched_tree, "256", "2", npu=False,
        VLLM_PLUGINS="", VLLM_DP_SIZE="128", VLLM_LOGGING_LEVEL="ERROR",
    )  # fmt: skip
    everyone = list(range(256))
    for rank, groups in enumerate(found):
        copy, place = divmod(rank, 2)
        assert groups["TP"] == [2 * copy, 2 * copy + 1]
        assert groups["PP"] == [rank]
        assert groups["DP"] == everyone[place::2]
        assert groups["EP"] == everyone
        assert groups["place"] == {"TP": place, "PP": 0, "DP": copy, "EP": rank}
        assert groups["dp_rank"] == str(copy)
    assert len(found) == 256
    assert len({groups["asked"] for groups in found}) == 1
