"""Commands that are useful for a run in its current state."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from npu_rl.training.record.recorded_run import NEW, UNKNOWN, RecordedRun


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
        for command, why in _commands(run, shlex.quote(given or run.name))
    ]


def resume_command(run: RecordedRun) -> str:
    """Return the command that resumes a run: its original command with --resume, and the name that it has now."""
    given = [word for word in run.overrides if word.startswith("name=")]
    words, name = list(run.overrides), f"name={run.name}"
    if given[-1:] != [name]:  # a run may be renamed
        words = [word for word in words if word not in given]
        words += [] if run.name == run.fact("recipe") else [name]
    return shlex.join(["npu-rl", "train", run.recipe_argument, *words, "--resume"])


def _commands(run: RecordedRun, name: str) -> Iterator[tuple[str, str]]:
    last = run.last
    rehearsal = run.fact("rehearsal") is not None
    step = run.record.latest_checkpoint
    if run.is_running:
        if last is not None and last.driver_log.exists():
            yield f"tail -f {shlex.quote(str(last.driver_log))}", "its output"
        yield f"npu-rl report {name} --watch", "its report, written again until it has ended"
        yield f"npu-rl runs stop {name}", "end it in order"
        return
    if run.leftover:
        yield f"npu-rl runs stop {name}", "end the processes that it left on this host"
    if run.state == UNKNOWN and last is not None:
        yield f"npu-rl runs show {name}", f"on {last.host.get('hostname')}, where it was begun"
        yield (
            f"npu-rl runs stop {name} --ended-on {shlex.quote(str(last.host.get('hostname')))}",
            "if it has ended there",
        )
        return
    if run.state in ("failed", "killed") and last is not None and last.driver_log.exists():
        yield f"less {shlex.quote(str(last.driver_log))}", "the log of its last attempt"
    unfinished = run.state in ("failed", "killed", "stopped") and (
        run.total is None or (step or 0) < run.total
    )
    if unfinished and step is not None and not rehearsal:
        yield resume_command(run), f"go on from its checkpoint of step {step}"
    if run.points:
        yield f"npu-rl report {name}", "its report as one HTML file"
    if run.sample_files():
        yield f"npu-rl runs samples {name} --order worst", "its responses of the lowest reward"
    if step is not None and run.state == "done":
        yield f"npu-rl weights export {name} {shlex.quote(run.name + '-hf')}", f"its model of step {step}"
    if run.state in ("failed", "killed", "stopped", NEW) and step is None:
        yield f"npu-rl runs rm {name}", "remove it: it has no checkpoint"
