"""The runs in a list, one row each: from the start of their files and the end of their metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from npu_rl.common.errors import NpuRlError
from npu_rl.training.monitor.screen import clock
from npu_rl.training.record.recorded_run import RecordedRun

Row = TypeVar("Row")
HEADS = ("run", "state", "recipe", "tree", "steps", "reward", "time", "nodes", "note")


def run_row(run: RecordedRun) -> dict[str, Any]:
    """Return the row of a run as documented in docs/json.md."""
    return {
        "name": run.name,
        "state": run.state,
        "recipe": run.recipe.name,
        "manifest": run.fact("manifest"),
        "tree": run.fact("tree"),
        "steps": run.steps,
        "total_steps": run.recipe.steps,
        "reward": run.last_reward,
        "seconds": None if run.seconds is None else round(run.seconds, 1),
        "nodes": run.nodes,
        "created": run.fact("created"),
        "attempts": len(run.attempts),
        "checkpoint": run.record.latest_checkpoint,
        "proven": run.unproven is None,
        "rehearsal": run.fact("rehearsal"),
        "folder": str(run.folder),
    }


def read_rows(
    runs: Iterable[RecordedRun], row: Callable[[RecordedRun], Row], errors: list[NpuRlError]
) -> list[Row]:
    """Return the rows of some runs by `run_row` or `row_cells`.

    Args:
        errors: Gets the error of each run whose record is damaged.
    """
    found = []
    for run in runs:
        try:
            found.append(row(run))
        except NpuRlError as error:
            errors.append(error)
    return found


def row_cells(run: RecordedRun) -> tuple[str, ...]:
    """Return the row of a run as text, in the order of `HEADS`."""
    reward = run.last_reward
    return (
        run.name,
        run.state,
        run.recipe.name,
        (run.fact("tree") or "")[:12],
        steps_text(run),
        "" if reward is None else f"{reward:.3f}",
        "" if run.seconds is None else clock(run.seconds),
        "" if run.nodes is None else str(run.nodes),
        "; ".join(_notes(run)),
    )


def steps_text(run: RecordedRun) -> str:
    """Return the number of steps done, and the recipe's number if it is known."""
    return f"{run.steps}/{run.recipe.steps}" if run.recipe.steps else str(run.steps) if run.attempts else ""


def _notes(run: RecordedRun) -> list[str]:
    return [
        *([f"begun on {run.begun_on}"] if run.begun_on else []),
        *(["unproven"] if run.unproven is not None else []),
        *([f"rehearsal {run.fact('rehearsal')}"] if run.fact("rehearsal") else []),
    ]
