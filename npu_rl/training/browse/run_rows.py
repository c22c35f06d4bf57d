"""Rows of `runs list`: one per run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from npu_rl.training.monitor.screen import clock
from npu_rl.training.record.recorded_run import RecordedRun

HEADS = ("run", "state", "recipe", "tree", "steps", "reward", "time", "nodes", "note")


@dataclass(frozen=True)
class RunRow:
    """A row of `runs list`, and the head of `runs show`.

    Attributes:
        state: running, done, failed (also if the trainer ended early or the goal was missed), stopped (by you or an
            alarm), killed (npu-rl itself was), new (no attempt has begun) or unknown (the run was begun on another
            host, and has no recorded end).
        attempts: Their number.
    """

    name: str
    state: str
    recipe: str
    manifest: str | None
    tree: str | None
    steps: int
    total_steps: int | None
    reward: float | None
    seconds: float | None
    nodes: int | None
    created: str | None
    attempts: int
    checkpoint: int | None
    proven: bool
    rehearsal: str | None
    folder: Path


@dataclass(frozen=True)
class RunList:
    """The result of `runs list`. `unreadable` has the paths of damaged records."""

    folder: Path
    runs: list[RunRow]
    rehearsals_left_out: int
    unreadable: list[str]


def run_row(run: RecordedRun) -> RunRow:
    """Return the row of a run."""
    return RunRow(
        run.name,
        run.state,
        run.recipe.name,
        run.fact("manifest"),
        run.fact("tree"),
        run.steps,
        run.recipe.steps,
        run.last_reward,
        None if run.seconds is None else round(run.seconds, 1),
        run.nodes,
        run.fact("created"),
        len(run.attempts),
        run.record.latest_checkpoint,
        run.unproven is None,
        run.fact("rehearsal"),
        run.folder,
    )


def row_cells(row: RunRow, steps: str) -> tuple[str, ...]:
    """Return a row as text, in the order of `HEADS`. steps: `steps_text`."""
    rehearsal = f"rehearsal {row.rehearsal}" if row.rehearsal else ""
    return (
        *(row.name, row.state, row.recipe, (row.tree or "")[:12], steps),
        "" if row.reward is None else f"{row.reward:.3f}",
        "" if row.seconds is None else clock(row.seconds),
        "" if row.nodes is None else str(row.nodes),
        "; ".join(filter(None, ("" if row.proven else "unproven", rehearsal))),
    )


def steps_text(run: RecordedRun) -> str:
    """Return the number of steps done, and the recipe's number if it is known."""
    if not run.attempts:
        return ""
    return str(run.steps) if run.recipe.steps is None else f"{run.steps}/{run.recipe.steps}"
