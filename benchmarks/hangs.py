"""Planted hangs and healthy runs, watched as `train` watches them: python -m benchmarks.hangs --lab DIR.

Each run is tests/training/hang_program.py with two ranks of Ray on gloo, the driver and the clock of npu-rl, and a
floor of 2 seconds. Of a hang is counted: whether the first line of the alarm's cause names rank and line as it should,
and the seconds from the deadline (the end of the last step plus the limit) to the alarm. Healthy runs validate and save
every third step, as the recipe says, for ten times as long as a step; an alarm of a hang is a false one.

A run that ended by an error, such as one whose Ray did not start, counts, and is named below the table.
"""

from __future__ import annotations

import argparse
import itertools
import re
import shutil
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from npu_rl.training.monitor.alarm import Alarm
from npu_rl.training.monitor.metrics import read_metrics
from tests.training.hang_run import Hung, hang

FLOOR = 2.0
# What the first line of the cause has to say.
NAMED = {
    "stopped": r"rank 1 \(.*\): stopped",
    "loop": r"rank 1 \(.*\): in .*hang_program\.py:\d+ in run_in_circles",
    "left": r"rank 1 \(.*\): waits for its next task",
    "reward": r"ray::Trainer\.run \(.*\): in .*hang_program\.py:\d+ in score_on_a_server",
    "receiver": r"a child of rank 1 \(.*\): has ended|rank 1 \(.*\): in .*hang_program\.py:\d+ in send_weights",
}


@dataclass(frozen=True)
class Trial:
    """One run."""

    kind: str
    named: bool
    late: float | None
    alarms: int
    seconds: float
    cause: str
    error: str


def deadline(hung: Hung) -> float:
    """Return the time at which the step that hung had taken as long as it may."""
    ended = [point.time for point in read_metrics(hung.folder / "metrics.jsonl")]
    return ended[-1] + max(FLOOR, 3 * max(later - earlier for earlier, later in itertools.pairwise(ended)))


def trial(lab: Path, kind: str, steps: int, work: float) -> Trial:
    """Run one."""
    folder = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=lab))
    slow = 20 * work if kind == "none" else 0.0
    hung = hang(folder, kind, steps=steps, floor=FLOOR, slow=slow, work=work)
    alarms = [(when, alarm) for when, alarm in hung.alarms if alarm.kind == "no-progress"]
    cause, named, late = "", False, None
    if alarms:
        when, alarm = alarms[0]
        cause = alarm.cause
        named = kind in NAMED and _names(alarm, NAMED[kind])
        late = round(when - deadline(hung), 1) if kind in NAMED else None
    shutil.rmtree(folder)
    return Trial(kind, named, late, len(alarms), round(hung.seconds, 1), cause, hung.error)


def _names(alarm: Alarm, pattern: str) -> bool:
    return re.match(pattern, alarm.cause) is not None


def table(trials: list[Trial]) -> str:
    """Return the results as a table."""
    lines = [
        "| planted | runs | named in the first line | seconds after the deadline | alarms |",
        "|---|---|---|---|---|",
    ]
    for kind in dict.fromkeys(one.kind for one in trials):
        own = [one for one in trials if one.kind == kind]
        late = sorted(one.late for one in own if one.late is not None)
        shown = f"{late[0]:g} to {late[-1]:g}, median {statistics.median(late):g}" if late else "-"
        named = "-" if kind == "none" else f"{sum(one.named for one in own)} of {len(own)}"
        lines.append(f"| {kind} | {len(own)} | {named} | {shown} | {sum(one.alarms for one in own)} |")
    errors = (f"- {one.kind}: {one.error.splitlines()[0]}" for one in trials if one.error)
    return "\n".join([*lines, "", *errors]).rstrip()


def main() -> None:
    """Run them all, print each as it ends, and then the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lab", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=4, help="of each planted hang")
    parser.add_argument("--healthy", type=int, default=20, help="runs in which nothing is planted")
    parser.add_argument("--kinds", nargs="*", default=list(NAMED), choices=list(NAMED))
    parser.add_argument("--work", type=float, default=0.8, help="seconds of a phase of a healthy run")
    given = parser.parse_args()
    given.lab.mkdir(parents=True, exist_ok=True)
    plan = [(kind, 5, 0.0) for _ in range(given.rounds) for kind in given.kinds]
    plan += [("none", 7, given.work)] * given.healthy
    trials = []
    for kind, steps, work in plan:
        trials.append(trial(given.lab, kind, steps, work))
        print(trials[-1], flush=True)
    print(table(trials))


if __name__ == "__main__":
    main()
