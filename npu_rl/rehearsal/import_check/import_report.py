"""The report of `verify --imports`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

from npu_rl.common.printable import counted, one_line
from npu_rl.common.yaml_documents.finding import Finding, Severity

_SHOWN = 8  # findings of one rule that the text shows


@dataclass(frozen=True)
class InterpreterReport:
    """The findings on an interpreter and a tree.

    Attributes:
        python: The interpreter's path, with its version.
        modules: Number of modules of the tree that were looked for.
        locked: Number of packages in the committed lock of packages; None if there is none for this interpreter.
        places: Number of places that patches change, by state: patched, wrapped, same, replaced, missing, unclear or
            unseen.
        standins: Stand-ins that took the place of what the interpreter lacks while the places were looked at.
    """

    python: str
    modules: int
    locked: int | None
    places: dict[str, int]
    standins: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Return whether the check found no errors."""
        return not any(found.severity is Severity.ERROR for found in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the documented JSON."""
        return {
            "ok": self.ok,
            "python": self.python,
            "modules": self.modules,
            "locked_packages": self.locked,
            "places": self.places,
            "standins": list(self.standins),
            "findings": [found.to_json() for found in self.findings],
        }

    def lines(self) -> list[str]:
        """Return the report as lines of text, errors first."""
        order = list(Severity)
        found = sorted(self.findings, key=lambda one: (order.index(one.severity), one.rule))
        lines: list[str] = []
        for rule, group in groupby(found, key=lambda one: one.rule):
            every = list(group)
            lines += [one_line(line) for one in every[:_SHOWN] for line in one.lines()]
            if len(every) > _SHOWN:
                lines.append(f"{len(every) - _SHOWN} more [{rule}] (--json lists all)")
        count = sum(self.places.values())
        states = ", ".join(f"{number} {state}" for state, number in self.places.items())
        lines.append(f"{counted(self.modules, 'module')} of the tree, found by {self.python}")
        lines.append(f"{counted(count, 'place')} that patches change{f': {states}' if states else ''}")
        if self.locked is not None:
            lines.append(f"{counted(self.locked, 'locked package')} compared")
        if self.standins:
            lines.append(f"stand-ins for what the interpreter lacks: {', '.join(self.standins)}")
        errors = sum(one.severity is Severity.ERROR for one in self.findings)
        lines.append(
            f"imports: {counted(errors, 'error')}" if errors else f"imports: {self._without_errors()}"
        )
        return lines

    def _without_errors(self) -> str:
        unseen = self.places.get("unseen", 0)
        return f"no error, but {counted(unseen, 'patched place')} not proven" if unseen else "all as locked"
