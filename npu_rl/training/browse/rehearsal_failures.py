"""Failures of a rehearsal, read from its rehearsal.json."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from npu_rl.common.printable import one_line

_MOST_FAILED, _LONGEST = 20, 1000  # reasons, and characters of each


def rehearsal_failures(verdict: dict[str, Any]) -> list[str]:
    """Return what failed, as LEVEL: REASON, from the content of a rehearsal.json, which may be anything."""
    failed = [one_line(reason)[:_LONGEST] for reason in _failed(verdict)]
    more = [f"and {len(failed) - _MOST_FAILED} more"] if len(failed) > _MOST_FAILED else []
    return [*failed[:_MOST_FAILED], *more]


def _failed(data: dict[str, Any]) -> Iterator[str]:
    rollout = data.get("rollout")
    levels = {level: data.get(level) for level in ("imports", "layout", "train")}
    if isinstance(rollout, dict):
        levels |= {f"rollout, {case}": part for case, part in rollout.items()}
    for level, part in levels.items():
        if isinstance(part, dict) and part.get("ok") is False:
            reasons = list(_reasons(part)) or ["failed"]
            yield from (f"{level}: {reason}" for reason in reasons)
    changed = data.get("changed_files")
    if isinstance(changed, list):
        yield from (f"changed file of the tree: {file}" for file in changed)


def _reasons(part: dict[str, Any]) -> Iterator[str]:
    if part.get("failure"):
        yield str(part["failure"])
    for check in _objects(part.get("checks")):
        if check.get("ok") is False:
            yield f"{check.get('name')}: {check.get('why')}"
    for module in _objects(part.get("failures")):
        if module.get("fault") is True:
            yield f"{module.get('module')}: {module.get('cause')}"


def _objects(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
