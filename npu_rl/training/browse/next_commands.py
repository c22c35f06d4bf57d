"""Commands that are useful for a run in its current state."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from npu_rl.training.record.recorded_run import UNKNOWN, RecordedRun, train_command


def next_commands(run: RecordedRun, given: str = "", workspace: str = "") -> list[str]:
    """Return shell command lines with comments, most useful first.

    Args:
        run: The run.
        given: Its folder, if it was not given by name.
        workspace: The folder of --workspace, if that was given.
    """
    option = f" --workspace {shlex.quote(workspace)}" if workspace else ""
    argument = shlex.quote(given or run.name) + option
    return [f"{command}   # {why}" for command, why in _commands(run, argument)]


def _commands(run: RecordedRun, argument: str) -> Iterator[tuple[str, str]]:
    last, step = run.last, run.record.latest_checkpoint
    log = shlex.quote(str(last.driver_log)) if last is not None and last.driver_log.exists() else None
    if run.is_running:
        if log:
            yield f"tail -f {log}", "its output"
        yield f"npu-rl report {argument} --watch", "its report, written again until it has ended"
        yield f"npu-rl runs stop {argument}", "end it in order"
        return
    if run.state == UNKNOWN:
        host = str(run.begun_on)
        yield f"npu-rl runs show {argument}", f"on {host}, where it was begun"
        yield f"{train_command(run, resume=True)} --ended-on {shlex.quote(host)}", "if it has ended there"
        return
    if log and run.state in ("failed", "killed"):
        yield f"less {log}", "the log of its last attempt"
    unfinished = run.state in ("failed", "killed", "stopped") and (
        run.recipe.steps is None or (step or 0) < run.recipe.steps
    )
    if unfinished and last is not None and not run.fact("rehearsal"):
        why = (
            "begin again: it has no checkpoint"
            if step is None
            else f"continue from its checkpoint of step {step}"
        )
        yield train_command(run, resume=step is not None), why
    if run.points:
        yield f"npu-rl report {argument}", "its report as one HTML file"
    if step is not None and run.state in ("done", "failed") and not unfinished:
        yield f"npu-rl weights export {argument} {shlex.quote(run.name + '-hf')}", f"its model of step {step}"
