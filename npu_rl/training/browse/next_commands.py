"""Commands that are useful for a run in its current state."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

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
        f"{command}{option if _takes_workspace(command) else ''}   # {why}"
        for command, why in _commands(run, given)
    ]


def _takes_workspace(command: str) -> bool:
    return command.startswith("npu-rl ") and " --workspace " not in command


def _resume_anywhere(run: RecordedRun, given: str) -> str:
    """Return the command that resumes a run; of one that was given by its folder with its workspace and its records."""
    command, place = resume_command(run), run.fact("workspace")
    if not given or not place:
        return command
    command = f"{command} --workspace {shlex.quote(place)}"
    runs = run.folder.parent
    if os.path.realpath(Path(place, "runs")) != os.path.realpath(runs):
        command = f"{RUNS.name}={shlex.quote(str(runs))} {command}"
    return command


def _commands(run: RecordedRun, given: str) -> Iterator[tuple[str, str]]:
    name = shlex.quote(given or run.name)
    last = run.last
    rehearsal = run.fact("rehearsal") is not None
    step = run.record.latest_checkpoint
    if run.is_running:
        if last is not None and last.driver_log.exists():
            yield f"tail -f {shlex.quote(str(last.driver_log))}", "its output"
        yield f"npu-rl report {name} --watch", "its report, written again until it has ended"
        yield f"npu-rl runs stop {name}", "end it in order"
        return
    if run.state == UNKNOWN:
        yield f"npu-rl runs show {name}", f"on {run.begun_on}, where it was begun"
        if step is not None and not rehearsal:
            ended = f" --ended-on {shlex.quote(str(run.begun_on))}"
            yield _resume_anywhere(run, given) + ended, "if it has ended there"
        return
    if run.state in ("failed", "killed") and last is not None and last.driver_log.exists():
        yield f"less {shlex.quote(str(last.driver_log))}", "the log of its last attempt"
    unfinished = run.state in ("failed", "killed", "stopped") and (
        run.recipe.steps is None or (step or 0) < run.recipe.steps
    )
    if unfinished and step is not None and not rehearsal:
        yield _resume_anywhere(run, given), f"continue from its checkpoint of step {step}"
    if run.points:
        yield f"npu-rl report {name}", "its report as one HTML file"
    if step is not None and (run.state == "done" or (run.state == "failed" and not unfinished)):
        yield f"npu-rl weights export {name} {shlex.quote(run.name + '-hf')}", f"its model of step {step}"
