"""The report of a layout's rehearsal: the checks, and the parts that were not rehearsed, with reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from npu_rl.recipes.sizing.divisibility import Check


@dataclass(frozen=True)
class NotRehearsed:
    """A level, or part of one, that could not be rehearsed here. It never counts as passed."""

    what: str
    why: str


@dataclass(frozen=True)
class LayoutReport:
    """The results of a layout's rehearsal. `ok` means that no check failed, not that everything was checked."""

    checks: tuple[Check, ...]
    not_rehearsed: tuple[NotRehearsed, ...] = ()
    stood_in: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Return whether every check passed."""
        return all(check.ok for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON types, for the run record and --json."""
        return {
            "ok": self.ok,
            "seconds": self.seconds,
            "checks": [check.to_json() for check in self.checks],
            "not_rehearsed": [vars(item) for item in self.not_rehearsed],
            "stood_in": list(self.stood_in),
        }

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        lines = [_line(check) for check in self.checks]
        lines += [f"not rehearsed: {item.what}: {item.why}" for item in self.not_rehearsed]
        lines += [f"stood in for: {what}" for what in self.stood_in]
        return lines


def _line(check: Check) -> str:
    figures = ", ".join(f"{name} {value}" for name, value in check.figures.items())
    return f"{'ok    ' if check.ok else 'WRONG '} {check.name}: {figures}" + (
        "" if check.ok else f"\n        {check.why}"
    )
