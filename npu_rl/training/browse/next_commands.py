"""Commands that are useful for a run in its current state."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from npu_rl.common.environment_variables import RUNS
from npu_rl.training.record.recorded_run import UNKNOWN, RecordedRun, resume_command


def next_commands(run: RecordedRun, given: str = "", workspace: str = "") -> list[str]:
    """Return shell command lines with comments, most useful first.

    Args:
        run: The run.
        given: Its folder, if it was not given by name.
        workspace: The folder of --workspace, if that was given.
    """
    option = f" --workspace {shlex.quote(workspace)}" if workspace else ""
    return [
        f"{command}{option if command.startswith('npu-rl ') else ''}   # {why}"
        for command, why in _commands(run, given)
    ]


def _resume_line(run: RecordedRun, given: str) -> str:
    """Return the line that resumes a run; of one that was given by its folder with its workspace and its records."""
    command, place = resume_command(run), run.fact("workspace")
    if not given or not place:
        return command
    records = shlex.quote(str(run.folder.parent))
    return f"{RUNS.name}={records} {command} --workspace {shlex.quote(place)}"


def _commands(run: RecordedRun, given: str) -> Iterator[tuple[str, str]]:
    name, last, step = shlex.quote(given or run.name), run.last, run.record.latest_checkpoint
    log = shlex.quote(str(last.driver_log)) if last is not None and last.driver_log.exists() else None
    if run.is_running:
        if log:
            yield f"tail -f {log}", "its output"
        yield f"npu-rl report {name} --watch", "its report, written again until it has ended"
        yield f"npu-rl runs stop {name}", "end it in order"
        return
    if run.state == UNKNOWN:
        yield f"npu-rl runs show {name}", f"on {run.begun_on}, where it was begun"
        yield (
            f"{_resume_line(run, given)} --ended-on {shlex.quote(str(run.begun_on))}",
            "if it has ended there",
        )
        return
    if log and run.state in ("failed", "killed"):
        yield f"less {log}", "the log of its last attempt"
    unfinished = run.state in ("failed", "killed", "stopped") and (
        run.recipe.steps is None or (step or 0) < run.recipe.steps
    )
    if unfinished and step is not None and not run.fact("rehearsal"):
        yield _resume_line(run, given), f"continue from its checkpoint of step {step}"
    if run.points:
        yield f"npu-rl report {name}", "its report as one HTML file"
    if step is not None and run.state in ("done", "failed") and not unfinished:
        yield f"npu-rl weights export {name} {shlex.quote(run.name + '-hf')}", f"its model of step {step}"
