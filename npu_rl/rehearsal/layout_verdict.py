"""Comparison of reported process groups and tiny models with the recipe's sizes. Doesn't need torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from npu_rl.recipes.sizing.divisibility import Check
from npu_rl.rehearsal.layout_report import NotRehearsed

RankLine = Mapping[str, Any]
LayoutResult = Check | NotRehearsed

# Kinds of groups that divide the world along independent dimensions.
_GRIDS = (("tensor", "context", "data", "pipeline"), ("expert_tensor", "expert", "expert_data", "pipeline"))
_CONNECTION_LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Timed out",
    "timed out",
    "Broken pipe",
)


def judge_groups(
    part: str, lines: Sequence[RankLine], sizes: Mapping[str, int], world: int
) -> Iterator[LayoutResult]:
    """Yield a check for every kind of process group.

    Each rank has to be in exactly one group of each kind, all members have to agree on it, and its size has to be the
    recipe's.

    Args:
        part: Name of the part for the checks.
        lines: Lines of the children (layout_groups.py), one per rank.
        sizes: Ranks per group, for each kind.
    """
    for line in lines:
        if "unprepared" in line:
            yield _not_begun(f"{part} groups", line["unprepared"])
            return
        if "refused" in line:
            yield _failure(f"{part} groups", f"rank {line['rank']}", line["refused"])
            return
    ranks = {line["rank"]: line for line in lines}
    if sorted(ranks) != list(range(world)):
        yield Check(f"{part} groups", False, {"ranks": len(ranks)}, f"there are {world} ranks")
        return
    if any(line["asked"] for line in lines):  # torch itself creates the groups of a device mesh
        yield _same_order(part, ranks)
    for kind, size in sizes.items():
        if any(kind in line["groups"] for line in lines):
            yield _partition(f"{part} groups: {kind}", kind, ranks, size)
        else:
            yield NotRehearsed(f"{part} groups: {kind}", "the tree's parallel state does not have that kind")
    yield from _independent(part, ranks, sizes)
    if "pipeline" in sizes:
        yield _neighbours(part, ranks)
        yield _embeddings(part, ranks)


def judge_model(
    name: str, lines: Sequence[RankLine], world: int, expected: Mapping[str, int]
) -> Iterator[LayoutResult]:
    """Yield the checks of the tiny model: what was built, forward and backward.

    Args:
        name: Name of the model for the checks.
        lines: Lines of the children (layout_model.py), one per rank.
        expected: Layers and experts that each rank has to have, if the backend reports them.
    """
    for line in lines:
        if "unprepared" in line:
            yield _not_begun(name, line["unprepared"])
            return
    ranks = sorted((line for line in lines if "rank" in line), key=lambda line: int(line["rank"]))
    failed = sorted((line for line in ranks if line["outcome"] != "done"), key=_distance_from_cause)
    if failed:
        yield _failure(name, f"rank {failed[0]['rank']} of {world}", failed[0])
        return
    if len(ranks) != world:
        yield Check(name, False, {"ranks": len(ranks)}, f"there are {world} ranks")
        return
    losses = [line["loss"] for line in ranks if line["loss"] is not None]
    sound = all(abs(line["loss"] - line["expected_loss"]) < 0.5 for line in ranks if line["loss"] is not None)
    figures = {
        "ranks": world,
        "parameters per rank": sorted({line["parameters"] for line in ranks}),
        **{what: sorted({line[what] for line in ranks}) for what in expected},
        "loss": round(sum(losses) / len(losses), 4) if losses else None,
    }
    built = all(line[what] == count for line in ranks for what, count in expected.items())
    yield Check(f"{name}: built", built, figures, f"each rank must have {dict(expected)}")
    yield Check(
        f"{name}: forward",
        bool(losses) and sound,
        {"loss": figures["loss"], "of random weights": round(ranks[0]["expected_loss"], 4)},
        "the loss of random weights is the logarithm of the vocabulary's size",
    )
    silent = {line["rank"]: line["without_gradient"] for line in ranks if line["without_gradient"]}
    yield Check(
        f"{name}: backward",
        not silent,
        {"ranks with all gradients": world - len(silent)},
        "; ".join(f"rank {rank}: no gradient for {', '.join(names[:4])}" for rank, names in silent.items()),
    )


def _not_begun(name: str, problem: RankLine) -> LayoutResult:
    """Return why a part could not start: not rehearsed if a package is missing, else a failed check."""
    if "missing" in problem and not problem["in_tree"]:
        return NotRehearsed(name, f"needs {problem['missing']}")
    return _failure(name, "before any rank began", problem)


def _failure(name: str, who: str, problem: RankLine) -> LayoutResult:
    """Return a failure: not rehearsed if a stand-in or MindSpeed's compiler doesn't support it, else a failed check."""
    where = problem.get("where") or ""
    outcome = problem.get("outcome", "raised")
    what = (
        f"{problem['type']}: {problem['text']}" if outcome == "raised" else
        "hung" if outcome == "hung" else f"{outcome} {problem['status']}"
    )  # fmt: skip
    if problem.get("unsupported") or where.startswith("mindspeed/op_builder/"):
        return NotRehearsed(name, what)
    return Check(name, False, {}, f"{who}: {what}" + (f" at {where}" if where else ""))


def _distance_from_cause(line: RankLine) -> tuple[int, int]:
    """Return a sort key that puts the rank that caused a failure before ranks that waited or lost the connection."""
    lost = line["outcome"] == "raised" and any(mark in line["text"] for mark in _CONNECTION_LOST)
    return (2 if line["outcome"] == "hung" else 1 if lost else 0), int(line["rank"])


def _same_order(part: str, ranks: Mapping[int, RankLine]) -> Check:
    asked = {(line["asked"], line["digest"]) for line in ranks.values()}
    return Check(
        f"{part} groups: every rank creates the same, in the same order",
        len(asked) == 1,
        {"ranks": len(ranks), "groups": ranks[0]["asked"]},
        "ranks that create different groups wait for each other indefinitely",
    )


def _partition(name: str, kind: str, ranks: Mapping[int, RankLine], size: int) -> Check:
    groups = {rank: line["groups"].get(kind) for rank, line in ranks.items()}
    figures = {"size": size, "groups": len({tuple(group) for group in groups.values() if group is not None})}
    for rank, group in groups.items():
        if group is None or rank not in group:
            return Check(name, False, figures, f"rank {rank} is in no group of its own")
        if len(group) != size or len(set(group)) != size:
            why = f"rank {rank} is in a group of {len(set(group))}, where the recipe sets {size}"
            return Check(name, False, figures, why)
        for other in group:
            if groups.get(other) != group:
                return Check(name, False, figures, f"ranks {rank} and {other} don't agree on their group")
    return Check(name, True, figures)


def _independent(part: str, ranks: Mapping[int, RankLine], sizes: Mapping[str, int]) -> Iterator[Check]:
    for grid in _GRIDS:
        there = [kind for kind in grid if all(kind in line["groups"] for line in ranks.values())]
        if len(there) < len(grid) or not set(grid) <= set(sizes):
            continue
        crossing = [
            (rank, one, other)
            for rank, line in ranks.items()
            for one, other in combinations(grid, 2)
            if set(line["groups"][one]) & set(line["groups"][other]) != {rank}
        ]
        why = ""
        if crossing:
            rank, one, other = crossing[0]
            why = f"rank {rank}'s {one} and {other} groups share more than itself"
        yield Check(f"{part} groups: {' x '.join(grid)}", not crossing, {"ranks": len(ranks)}, why)


def _neighbours(part: str, ranks: Mapping[int, RankLine]) -> Check:
    wrong = ""
    for rank, line in ranks.items():
        stages = line["groups"]["pipeline"]
        here = stages.index(rank)
        if (line["previous"], line["next"]) != (stages[here - 1], stages[(here + 1) % len(stages)]):
            wrong = f"rank {rank} sends to {line['next']}, and its stages are {stages}"
            break
    stages = len(ranks[0]["groups"]["pipeline"])
    return Check(f"{part} groups: pipeline neighbours", not wrong, {"stages": stages}, wrong)


def _embeddings(part: str, ranks: Mapping[int, RankLine]) -> Check:
    """Check that the first and the last stage, which have the word embedding, share its gradient."""
    wrong = ""
    for rank, line in ranks.items():
        stages = line["groups"]["pipeline"]
        ends = [stages[0], stages[-1]] if len(stages) > 1 else [stages[0]]
        if line["groups"].get("embedding") != (ends if rank in ends else None):
            wrong = f"rank {rank} shares it with {line['groups'].get('embedding')}, its ends are {ends}"
            break
    holders = sum("embedding" in line["groups"] for line in ranks.values())
    return Check(f"{part} groups: embedding", not wrong, {"ranks with an embedding": holders}, wrong)
