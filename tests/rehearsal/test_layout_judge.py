"""What ranks say of their groups is only well if it is what the sizes demand, on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from npu_rl.recipes.sizing.divisibility import Check
from npu_rl.rehearsal.layout_report import NotRehearsed
from npu_rl.rehearsal.layout_verdict import judge_groups, judge_model

WORLD = 8
SIZES = {"tensor": 2, "context": 1, "data": 2, "pipeline": 2}


def lines() -> list[dict[str, Any]]:
    """8 ranks as tensor 2 x data 2 x pipeline 2, tensor fastest."""
    found: list[dict[str, Any]] = []
    for rank in range(WORLD):
        pipeline = [rank % 4, rank % 4 + 4]
        groups = {
            "tensor": [rank - rank % 2, rank - rank % 2 + 1],
            "context": [rank],
            "data": sorted({rank, rank ^ 2}),
            "pipeline": pipeline,
            "embedding": pipeline,
        }
        other = pipeline[1] if rank < 4 else pipeline[0]
        found.append(
            {"rank": rank, "groups": groups, "next": other, "previous": other, "asked": 22, "digest": "d"}
        )
    return found


def judged(found: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    seen = list(judge_groups("training", found, SIZES, WORLD))
    wrong = [
        item.name.removeprefix("training groups").removeprefix(": ")
        for item in seen
        if isinstance(item, Check) and not item.ok
    ]
    return wrong, [item.what for item in seen if isinstance(item, NotRehearsed)]


def test_what_fits_is_well() -> None:
    assert judged(lines()) == ([], [])
    names = [item.name for item in judge_groups("training", lines(), SIZES, WORLD) if isinstance(item, Check)]
    assert "training groups: pipeline neighbours" in names
    assert "training groups: tensor x context x data x pipeline" in names


def swap(kind: str, rank: int, group: list[int]) -> Callable[[list[dict[str, Any]]], None]:
    return lambda found: found[rank]["groups"].__setitem__(kind, group)


@pytest.mark.parametrize(
    ("break_it", "names"),
    [
        (swap("tensor", 3, [2, 3, 4]), ["tensor"]),
        (swap("data", 5, [5, 6]), ["data"]),
        (swap("data", 5, [7]), ["data", "tensor x context x data x pipeline"]),
        (swap("tensor", 0, [0, 0]), ["tensor"]),
        (swap("embedding", 4, [0]), ["embedding"]),
        (lambda found: found[6]["groups"].pop("embedding"), ["embedding"]),
        (lambda found: found[6]["groups"].pop("tensor"), ["tensor"]),
        (lambda found: found[2].update(next=7), ["pipeline neighbours"]),
        (lambda found: found[2].update(digest="other"), ["every rank creates the same, in the same order"]),
        (lambda found: found.pop(), [""]),
        (lambda found: found[7].update(refused={"type": "E", "text": "no", "where": None}), [""]),
    ],
)  # fmt: skip
def test_one_rank_that_differs_is_seen(
    break_it: Callable[[list[dict[str, Any]]], object], names: list[str]
) -> None:
    found = lines()
    break_it(found)
    assert judged(found) == (names, [])


def test_two_directions_that_are_one_are_seen() -> None:
    found = lines()
    for line in found:
        line["groups"]["data"] = line["groups"]["tensor"]
    assert judged(found) == (["tensor x context x data x pipeline"], [])


def test_a_package_that_is_missing_is_not_rehearsed_and_a_broken_tree_is_wrong() -> None:
    problem = {"type": "ModuleNotFoundError", "text": "No module named 'x'", "where": None}
    missing = [{"unprepared": {**problem, "missing": "x", "in_tree": False}}]
    lacking = [{"unprepared": {**problem, "missing": "p.x", "in_tree": True}}]
    assert list(judge_groups("rollout", missing, {}, 1)) == [NotRehearsed("rollout groups", "needs x")]
    assert judged(lacking) == ([""], [])


def rank(number: int, **change: Any) -> dict[str, Any]:
    sound = {"parameters": 10, "layers": 2, "loss": 4.8, "expected_loss": 4.85, "without_gradient": []}
    return {"rank": number, "outcome": "done", **sound, **change}


def failed(number: int, text: str) -> dict[str, Any]:
    return {"rank": number, "outcome": "raised", "type": "E", "text": text, "where": "megatron/x.py:1"}


def wrong(found: list[dict[str, Any]]) -> list[tuple[str, str]]:
    seen = judge_model("m", found, 2, {"layers": 2})
    return [(item.name, item.why) for item in seen if isinstance(item, Check) and not item.ok]


def test_a_sound_model_is_well() -> None:
    assert wrong([rank(0, loss=None), rank(1)]) == []


@pytest.mark.parametrize(
    ("found", "name"),
    [
        ([rank(0), rank(1, layers=1)], "m: built"),
        ([rank(0), rank(1, loss=6.0)], "m: forward"),
        ([rank(0), rank(1, loss=float("nan"))], "m: forward"),
        ([rank(0, loss=None), rank(1, loss=None)], "m: forward"),
        ([rank(0), rank(1, without_gradient=["w"])], "m: backward"),
        ([rank(0)], "m"),
        ([], "m"),
    ],
)
def test_an_unsound_model_is_seen(found: list[dict[str, Any]], name: str) -> None:
    assert [item[0] for item in wrong(found)] == [name]


def test_the_rank_that_failed_is_named_not_those_that_lost_it() -> None:
    hung = {"rank": 1, "outcome": "hung"}
    lost = failed(0, "gloo: Connection closed by peer [127.0.0.1]:1")
    cause = failed(2, "MLA is not supported")
    assert wrong([hung, lost, cause]) == [("m", "rank 2 of 2: E: MLA is not supported at megatron/x.py:1")]
    assert wrong([hung, lost])[0][1].startswith("rank 0 of 2: E: gloo")
    assert wrong([hung]) == [("m", "rank 1 of 2: hung")]


def test_an_op_without_a_cpu_version_is_not_rehearsed() -> None:
    unsupported = {**failed(0, "npu_x has no CPU version"), "unsupported": True}
    compiled = {**failed(0, "no CANN"), "where": "mindspeed/op_builder/builder.py:49"}
    for line in (unsupported, compiled):
        found = list(judge_model("m", [line], 2, {}))
        assert [type(item) for item in found] == [NotRehearsed]
