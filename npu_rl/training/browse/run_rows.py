"""Rows of `runs list`: one per run."""

from __future__ import annotations

from typing import Any

from npu_rl.training.monitor.screen import clock
from npu_rl.training.record.recorded_run import RecordedRun

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


def row_cells(run: RecordedRun) -> tuple[str, ...]:
    """Return the row of a run as text, in the order of `HEADS`."""
    row = run_row(run)
    rehearsal = f"rehearsal {row['rehearsal']}" if row["rehearsal"] else ""
    return (
        *(row["name"], row["state"], row["recipe"], (row["tree"] or "")[:12], steps_text(run)),
        "" if row["reward"] is None else f"{row['reward']:.3f}",
        "" if row["seconds"] is None else clock(row["seconds"]),
        "" if row["nodes"] is None else str(row["nodes"]),
        "; ".join(filter(None, ("" if row["proven"] else "unproven", rehearsal))),
    )


def steps_text(run: RecordedRun) -> str:
    """Return the number of steps done, and the recipe's number if it is known."""
    if not run.attempts:
        return ""
    return str(run.steps) if run.recipe.steps is None else f"{run.steps}/{run.recipe.steps}"
