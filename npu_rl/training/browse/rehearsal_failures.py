"""Failures of a rehearsal, from its rehearsal.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_MOST = 20  # reasons


def rehearsal_failures(verdict: Mapping[str, Any]) -> list[str]:
    """Return what failed, as LEVEL: REASON, from the content of a rehearsal.json."""
    cases = {f"rollout, {case}": part for case, part in (verdict.get("rollout") or {}).items()}
    levels = {level: verdict.get(level) for level in ("imports", "layout", "train")}
    failed = [
        f"{level}: {reason}"
        for level, part in {**levels, **cases}.items()
        if isinstance(part, dict) and part.get("ok") is False
        for reason in list(_reasons(part)) or ["failed"]
    ]
    failed += [f"changed file of the tree: {file}" for file in verdict.get("changed_files") or ()]
    return [*failed[:_MOST], *([f"and {len(failed) - _MOST} more"] if len(failed) > _MOST else [])]


def _reasons(part: Mapping[str, Any]) -> Iterator[str]:
    if part.get("failure"):
        yield part["failure"]
    yield from (f"{one['name']}: {one['why']}" for one in part.get("checks", ()) if not one["ok"])
    yield from (f"{one['module']}: {one['cause']}" for one in part.get("failures", ()) if one["fault"])
