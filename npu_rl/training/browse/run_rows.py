"""The runs in a list, one row each: from the start of their files and the end of their metrics."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from npu_rl.common.errors import NpuRlError
from npu_rl.common.printable import counted
from npu_rl.training.monitor.screen import clock
from npu_rl.training.record.recorded_run import RecordedRun
from npu_rl.training.record.run_errors import NoSuchRun, removal_noticed, unreadable_run

Row = TypeVar("Row")
HEADS = ("run", "state", "recipe", "tree", "steps", "reward", "time", "nodes", "note")


def run_row(run: RecordedRun) -> dict[str, Any]:
    """Return the row of a run as documented in docs/json.md."""
    return {
        "name": run.name,
        "state": run.state,
        "recipe": run.recipe_name,
        "manifest": run.fact("manifest"),
        "tree": run.fact("tree"),
        "steps": run.steps,
        "total_steps": run.total,
        "reward": run.last_reward,
        "seconds": None if run.seconds is None else round(run.seconds, 1),
        "nodes": run.nodes,
        "created": run.fact("created"),
        "attempts": len(run.attempts),
        "checkpoint": run.record.latest_checkpoint,
        "proven": run.record.unproven is None,
        "rehearsal": run.fact("rehearsal"),
        "left": list(run.leftover),
        "folder": str(run.folder),
    }


def read_rows(
    runs: Iterable[RecordedRun], row: Callable[[RecordedRun], Row], errors: list[NpuRlError]
) -> list[Row]:
    """Return the rows of some runs by `run_row` or `row_cells`, without runs that were removed meanwhile.

    Args:
        errors: Gets the error of each run of which a file can't be read.
    """
    found = []
    for run in runs:
        try:
            with contextlib.suppress(NoSuchRun), removal_noticed(run.folder):
                found.append(row(run))
        except (NpuRlError, OSError) as error:
            errors.append(unreadable_run(run.folder, error))
    return found


def row_cells(run: RecordedRun) -> tuple[str, ...]:
    """Return the row of a run as text, in the order of `HEADS`."""
    reward = run.last_reward
    return (
        run.name,
        run.state,
        run.recipe_name,
        (run.fact("tree") or "")[:12],
        steps_text(run),
        "" if reward is None else f"{reward:.3f}",
        "" if run.seconds is None else clock(run.seconds),
        "" if run.nodes is None else str(run.nodes),
        "; ".join(_notes(run)),
    )


def steps_text(run: RecordedRun) -> str:
    """Return the number of steps done, and the recipe's number if it is known."""
    return f"{run.steps}/{run.total}" if run.total else str(run.steps) if run.attempts else ""


def _notes(run: RecordedRun) -> list[str]:
    left = len(run.leftover)
    return [
        *(["its npu-rl was killed"] if run.lost_npu_rl else []),
        *(["unproven"] if run.record.unproven is not None else []),
        *([f"rehearsal {run.fact('rehearsal')}"] if run.fact("rehearsal") else []),
        *([f"{left} process{'' if left == 1 else 'es'} left"] if left else []),
        *([counted(len(run.missing), "file") + " unreadable"] if run.missing else []),
    ]
