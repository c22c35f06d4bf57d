"""The alarms of a run that makes no progress, of a node that is gone, and of a log that has stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_rl.common.printable import counted
from npu_rl.training.monitor.alarm import Alarm
from npu_rl.training.monitor.stack_groups import StackGroup, group_processes, missing_ranks, read_processes
from npu_rl.training.monitor.step_clock import Wait
from npu_rl.training.monitor.step_text import clock

_SHOWN = 4  # groups that the alarm names
_UNKNOWN = (
    "A process is stuck or dead and the others wait for it in a collective operation, or a disk or a network is "
    "slow."
)
_STOP = "(Ctrl-C, or `npu-rl runs stop {run}` in another shell)"
_HINTS = {
    "stopped": "Continue a stopped process with `kill -CONT PID` on its host; something stopped it on purpose.",
    "ended": f"A process that has ended is not restarted: stop the run {_STOP} and continue with --resume.",
    "lost": f"Stop the run {_STOP}, start Ray there again or leave it out, and continue with --resume.",
    "silent": "Look at that node's network and load. If it does not come back, stop the run "
    f"{_STOP}, start Ray there again or leave it out, and continue with --resume.",
    "stuck": f"Read the stacks. Unless a disk or a network is slow, stop the run {_STOP} and continue with --resume. "
    "If a step may take that long, raise watch.phase_timeout.",
    "log": f"The run itself goes on. To have its log again, stop it {_STOP} and continue with --resume.",
}


@dataclass(frozen=True)
class StackReport:
    """The stacks of a run's processes, grouped.

    Attributes:
        silent: Nodes that did not answer.
        lost: Nodes that the cluster has lost since the run began.
        error: Why there are no stacks; "" if there are some.
    """

    groups: Sequence[StackGroup] = ()
    missing: Sequence[str] = ()
    silent: Sequence[str] = ()
    lost: Sequence[str] = ()
    error: str = ""

    def lines(self) -> list[str]:
        """Return one line per anomaly, lost nodes and ranks first."""
        where = "on a node that does not answer" if self.silent else "gone, no node has its process"
        return [
            *(f"{node} has left the Ray cluster" for node in self.lost),
            *(f"{node} does not answer" for node in self.silent),
            *(f"{ranks}: {where}" for ranks in self.missing),
            *(f"{group.who}: {group.what}" for group in self.groups),
        ]

    def text(self) -> str:
        """Return the whole report: a line for each group, then the stacks of one process of each."""
        parts = ["\n".join(self.lines())]
        for group in self.groups:
            one = group.members[0]
            parts.append(f"== {group.who}\n{group.what}\n" + "\n".join(one.title for one in group.members))
            parts += [
                f"-- {one.title}, {'main thread' if number == 0 else f'thread {number + 1}'} (innermost first)\n"
                + "\n".join(f"  {frame}" for frame in stack)
                for number, stack in enumerate(one.stacks)
            ]
        return "\n\n".join(parts) + "\n"

    @property
    def advice(self) -> str:
        """The key of the hint."""
        if self.lost:
            return "lost"
        if self.silent:
            return "silent"
        if any(group.members[0].stopped for group in self.groups):
            return "stopped"
        return "ended" if self.missing or any(group.members[0].ended for group in self.groups) else "stuck"


def report_of(found: Mapping[str, Any]) -> StackReport:
    """Parse the output of npu_rl_stacks.py into a report."""
    processes = read_processes(found)
    return StackReport(
        groups=group_processes(processes),
        missing=missing_ranks(processes),
        silent=[f"{node['host']} ({node['ip']})" for node in found["silent"]],
        lost=[
            f"{node['host']} ({node['ip']})" + (f": {node['reason']}" if node["reason"] else "")
            for node in found["lost"]
        ],
    )


def hang_alarm(
    wait: Wait, step: int | None, report: StackReport, file: Path, *, run: str, fatal: bool
) -> Alarm:
    """Return the alarm.

    Args:
        step: The last step that ended; None before the first.
        file: The file with the stacks, or the log if there are none.
        run: The run's name.
    """
    longest = "" if wait.longest is None else f"; at most {clock(wait.longest)} so far"
    lines = report.lines()
    shown = lines[:_SHOWN]
    if len(lines) > _SHOWN:
        shown.append(f"and {counted(len(lines) - _SHOWN, 'more group')}")
    if report.error:
        shown.append(f"No stacks: {report.error}")
    return Alarm(
        "no-progress",
        f"{wait.what} takes {clock(wait.waited)} (limit {clock(wait.limit)}{longest})",
        "\n".join(shown if lines else [_UNKNOWN, *shown]),
        str(file),
        fatal,
        _HINTS[report.advice].format(run=run),
        step,
    )


def lost_node_alarm(address: str, step: int | None, log: Path, *, run: str) -> Alarm:
    """Return the alarm for a node that Ray has given up; `run` is the run's name."""
    return Alarm(
        "lost-node",
        f"The node {address} left the Ray cluster{'' if step is None else f' after step {step}'}",
        f"Ray's head no longer gets messages from {address}: the host, its network or its Ray is gone.",
        str(log),
        hint=_HINTS["lost"].format(run=run),
        step=step,
    )


def stopped_log_alarm(written: int, step: int | None, log: Path, *, run: str) -> Alarm:
    """Return the alarm for a log that ends while the trainer continues.

    Args:
        written: The newest step of which samples or a checkpoint were written.
        step: The last step in the log; None before the first.
        log: The log.
        run: The run's name.
    """
    return Alarm(
        "stopped-log",
        f"The log has {'no step' if step is None else f'no step after {step}'}, but step {written} was written",
        "The trainer goes on, but its lines no longer come from Ray. Its metrics are only where logging.backends "
        "writes them.",
        str(log),
        hint=_HINTS["log"].format(run=run),
        step=step,
    )
