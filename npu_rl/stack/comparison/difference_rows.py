"""The rows of the tables that `manifests diff` prints, for differences only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from npu_rl.stack.comparison.commits_between import CommitsBetween
from npu_rl.stack.comparison.stack_differences import (
    ADDED,
    REMOVED,
    SAME,
    ChangedValue,
    ComparedPatches,
    StackDifferences,
)
from npu_rl.stack.git.objects import short
from npu_rl.stack.resolve.refs import is_full_id

_REF = re.compile("^refs/((tags|heads)/)?")


def component_rows(found: StackDifferences) -> Iterator[tuple[str, str, str, str]]:
    """Yield the name, old pin, new pin and commits in between for each component whose pin differs."""
    for one in found.components:
        if one.pin is not None:
            before, after = (_short_pin(pin) for pin in (one.pin.before, one.pin.after))
            yield one.name, before, after, one.state if one.commits is None else _commits(one.commits)


def value_rows(found: StackDifferences) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield a row for every other difference: its owner, its kind or name, the change, and both values."""
    yield from _rows("stack", found.stack)
    for one in found.components:
        if one.state in (ADDED, REMOVED):
            yield from _patch_rows(one.name, one.patches)
            continue
        for take in one.takes:
            yield one.name, "take", take.state, take.before or "", take.after or ""
        yield from _rows(one.name, one.merges)
        yield from _patch_rows(one.name, one.patches)
        yield from _rows(one.name, one.others)
    yield from _patch_rows("tree", found.tree_patches)
    yield from _rows("requirements", found.requirements)
    yield from _rows("env", found.env)
    yield from _rows("host", found.host)


def _commits(commits: CommitsBetween) -> str:
    if commits.count is None:
        return f"not counted: {' '.join(commits.why.split())}"
    gone = f" ({commits.gone} of the earlier pin are not among its ancestors)" if commits.gone else ""
    return f"{commits.count}{gone}"


def _short_pin(pin: str | None) -> str:
    """Return a pin with the last part of its ref, or a release without its digest."""
    words = [word for word in (pin or "").split(" ") if not word.startswith("sha256:")]
    return " ".join(short(word) if is_full_id(word) else _REF.sub("", word) for word in words)


def _rows(of: str, values: Iterable[ChangedValue]) -> Iterator[tuple[str, str, str, str, str]]:
    for value in values:
        yield of, value.name, value.state, _short_ids(value.before), _short_ids(value.after)


def _short_ids(text: str | None) -> str:
    return " ".join(short(word) if is_full_id(word) else word for word in (text or "").split(" "))


def _patch_rows(of: str, patches: Iterable[ComparedPatches]) -> Iterator[tuple[str, str, str, str, str]]:
    for patch in patches:
        if patch.state != SAME:
            before, after = patch.before or "", patch.after or ""
            change = f"{patch.state} ({patch.why})" if patch.why else patch.state
            yield of, f"patch {patch.name}", change, before, after
