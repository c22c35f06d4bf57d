"""Results as JSON with every raw number, and as Markdown tables for a README."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .copies import Expected
from .measure import Cost
from .peers import Contender

MB = 1e6


@dataclass(frozen=True)
class Row:
    """One run: its cost, the bytes on the wire (None if nobody counted) and on disk."""

    cost: Cost
    moved: int | None
    disk: int


@dataclass
class Table:
    """One scenario. `floor`: the contender ratios refer to. `limits`: byte counts to compare with."""

    title: str
    floor: str
    timed: bool = True
    contenders: dict[str, Contender] = field(default_factory=dict)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)
    notices: dict[str, bool] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    loads: list[float] = field(default_factory=list)

    def enter(self, contenders: list[Contender]) -> None:
        """Name those who take part, in the order of the table."""
        for contender in contenders:
            self.contenders.setdefault(contender.key, contender)

    def trouble(self, contender: Contender, what: str) -> None:
        self.enter([contender])
        self.troubles[contender.key] = what

    def complete(self) -> dict[str, list[Row]]:
        """The rows of those that came through every round: only they can be compared round by round."""
        return {key: rows for key, rows in self.rows.items() if key not in self.troubles}

    def over_floor(self, key: str) -> float | None:
        """Median over the rounds of wall / the floor's wall in the same round."""
        return self._ratio(key, {self.floor} - {key})

    def over_best_peer(self, key: str) -> float | None:
        """Median over the rounds of wall / the fastest peer's wall in the same round."""
        return self._ratio(key, {k for k, c in self.contenders.items() if c.peer})

    def unsteady(self) -> str | None:
        """A warning if the floor, which should cost the same each round, does not."""
        walls = [row.cost.wall for row in self.complete().get(self.floor, [])]
        if not self.timed or not walls or max(walls) < 2 * min(walls):
            return None
        return f"The floor took from {min(walls):.2f} to {max(walls):.2f} s: the machine was not quiet."

    def _ratio(self, key: str, others: set[str]) -> float | None:
        rows = self.complete()
        rivals = [rows[other] for other in others if other in rows]
        if key not in rows or not rivals:
            return None
        best = [min(rival[number].cost.wall for rival in rivals) for number in range(len(rows[key]))]
        return statistics.median(row.cost.wall / wall for row, wall in zip(rows[key], best, strict=True))


@dataclass
class Results:
    """All tables of one run of the benchmark."""

    command: str
    about: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    tables: dict[str, Table] = field(default_factory=dict)

    def describe(self, expected: Expected, peers: dict[str, str], file_system: str) -> None:
        git = subprocess.run(["git", "--version"], capture_output=True, text=True, check=True).stdout
        self.about = {
            "code_tree": {"id": expected.tree, "files": expected.files, "bytes": expected.size},
            "peers": peers,
            "git": git.strip().removeprefix("git version "),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "trials_on": file_system,
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        }

    def troubles(self) -> list[str]:
        return [
            f"{name}: {key}: {what}" for name, t in self.tables.items() for key, what in t.troubles.items()
        ]


def write(results: Results, folder: Path) -> None:
    """`results.json` and `results.md`; written after every scenario, so a stopped run keeps what it has."""
    data = {
        "command": results.command,
        "about": results.about,
        "notes": results.notes,
        "scenarios": {name: _raw(table) for name, table in results.tables.items()},
    }
    (folder / "results.json").write_text(json.dumps(data, indent=1) + "\n")
    (folder / "results.md").write_text(markdown(results))


def _raw(table: Table) -> dict[str, Any]:
    return {
        "title": table.title,
        "floor": table.floor,
        "load_before_round": table.loads,
        "limits_bytes": table.limits,
        "contenders": {
            key: {
                "title": contender.title,
                "leaves_out": contender.leaves_out,
                "peer": contender.peer,
                "trouble": table.troubles.get(key),
                "notices_a_changed_byte": table.notices.get(key),
                "over_floor": table.over_floor(key) if table.timed else None,
                "over_best_peer": table.over_best_peer(key) if table.timed else None,
                "runs": [asdict(row) for row in table.rows.get(key, [])],
            }
            for key, contender in table.contenders.items()
        },
    }


def markdown(results: Results) -> str:
    """The command, the surroundings, one table per scenario, and what each contender leaves out."""
    about = results.about
    lines = ["```", results.command, "```", ""]
    if about:
        tree, peers = about["code_tree"], ", ".join(f"{k} {v}" for k, v in about["peers"].items())
        lines.append(
            f"{tree['files']} files, {tree['bytes'] / MB:.1f} MB assembled. {about['cores']} cores, "
            f"{about['system']}, git {about['git']}, Python {about['python']}; {peers}. "
            f"Trials on {about['trials_on']}. Medians; ratios are medians of the ratios within each round."
        )
    lines += [f"\nNote: {note}" for note in results.notes]
    for table in results.tables.values():
        lines += ["", f"### {table.title}", "", *_table(table)]
    lines += ["", *_left_out(results)]
    return "\n".join(lines).rstrip() + "\n"


Cell = Callable[[str, list[Row]], str]


def _table(table: Table) -> list[str]:
    columns = _columns(table)
    rows = table.complete()
    count = len(next(iter(rows.values()), []))
    lines = [
        f"| contender ({count} round{'s' * (count != 1)}) | " + " | ".join(columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for key, contender in table.contenders.items():
        if key in rows:
            cells = (cell(key, rows[key]) for cell in columns.values())
            lines.append(f"| {contender.title} | " + " | ".join(cells) + " |")
        else:
            said = " ".join(table.troubles.get(key, "did not run").split())[-200:]
            lines.append(f"| {contender.title} | failed: {said}" + " |" * len(columns))
    remarks = [f"For comparison, {name}: {size / MB:.2f} MB." for name, size in table.limits.items()]
    remarks += [warning] if (warning := table.unsteady()) else []
    return lines + [f"\n{remark}" for remark in remarks]


def _columns(table: Table) -> dict[str, Cell]:
    columns: dict[str, Cell] = {}
    if table.timed:
        columns["s"] = lambda key, rows: f"{_median(rows, lambda r: r.cost.wall):.3g}"
        columns["x floor"] = lambda key, rows: _times(table.over_floor(key))
        columns["x best peer"] = lambda key, rows: _times(table.over_best_peer(key))
    columns["CPU s"] = lambda key, rows: f"{_median(rows, lambda r: r.cost.cpu):.2g}"
    columns["MB moved"] = lambda key, rows: _megabytes(rows, lambda r: r.moved)
    columns["MB disk"] = lambda key, rows: _megabytes(rows, lambda r: r.disk)
    if not table.timed:
        columns["MB memory (PSS)"] = lambda key, rows: _megabytes(rows, lambda r: r.cost.pss)
        columns["MB memory (RSS)"] = lambda key, rows: _megabytes(rows, lambda r: r.cost.rss)
        columns["MB largest process"] = lambda key, rows: _megabytes(rows, lambda r: r.cost.largest)
    if table.notices:
        answers = {True: "yes", False: "no", None: "-"}
        columns["notices a changed byte"] = lambda key, rows: answers[table.notices.get(key)]
    all_rows = [row for rows in table.complete().values() for row in rows]
    if all(row.moved is None for row in all_rows):
        del columns["MB moved"]
    if table.notices:
        del columns["MB disk"]
    return columns


def _median(rows: list[Row], value: Callable[[Row], float]) -> float:
    return statistics.median(map(value, rows))


def _megabytes(rows: list[Row], value: Callable[[Row], int | None]) -> str:
    numbers = [number for number in map(value, rows) if number is not None]
    return f"{statistics.median(numbers) / MB:.3g}" if numbers else "-"


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3g}"


def _left_out(results: Results) -> list[str]:
    said: dict[str, str] = {}
    for table in results.tables.values():
        for contender in table.contenders.values():
            if contender.leaves_out:
                said.setdefault(contender.title, "; ".join(contender.leaves_out))
    return (
        ["What each leaves out or does besides:", "", *(f"- {k}: {v}." for k, v in said.items())]
        if said
        else []
    )
