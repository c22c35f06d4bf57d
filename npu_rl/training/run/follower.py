"""Following of a run: log and clock are passed on to the record and the screen."""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace

from npu_rl.training.monitor.alarm import Alarm
from npu_rl.training.monitor.hang_alarm import hang_alarm, lost_node_alarm, stopped_log_alarm
from npu_rl.training.monitor.log_lines import speaker_and_message
from npu_rl.training.monitor.metrics import MetricsWriter, seconds
from npu_rl.training.monitor.screen import PlainScreen
from npu_rl.training.monitor.step_clock import FIRST_STEP, StepClock, Wait
from npu_rl.training.monitor.step_lines import StepLines
from npu_rl.training.monitor.symptoms import NODE_MARKED_DEAD, RAY_NOT_STARTED
from npu_rl.training.monitor.tail import Tail
from npu_rl.training.monitor.watch import Watch
from npu_rl.training.record.attempt import Attempt
from npu_rl.training.run.hang_stacks import StackCollector

# Text in the driver's log at the beginning of a stage (from the driver; verl/trainer/main_ppo.py at 0.5.0).
_STAGES = (
    ("npu-rl: starting Ray", "starting Ray"),
    ("npu-rl: comparing the nodes", "comparing the nodes"),
    ("npu-rl: Ray is up", "loading the trainer"),
    ("TaskRunner hostname:", "reading the data"),
    ("Total training steps:", "building the workers"),
    ("Training Progress:", FIRST_STEP),
)
_RAY_IS_UP = "npu-rl: comparing the nodes"
_LAST_STAGE = "ending the run"


class Follower:
    """Follows the growing log: metrics go to the file; stages, steps and alarms go to the screen."""

    def __init__(
        self,
        attempt: Attempt,
        writer: MetricsWriter,
        watch: Watch,
        clock: StepClock,
        screen: PlainScreen,
        total: int,
        lines: StepLines,
        stop_after: int | None,
        collect: Callable[[], StackCollector],
    ) -> None:
        """Begin at the start of the log. `collect` starts collecting the stacks of all processes."""
        self._stop_after = stop_after
        self._attempt = attempt
        self._log = Tail(attempt.driver_log)
        self._writer = writer
        self._watch = watch
        self._clock = clock
        self._screen = screen
        self._total = total
        self._lines = lines
        self._collect = collect
        self._collection: tuple[Wait, StackCollector] | None = None
        self._recent: list[float] = []
        self._step: int | None = None
        self._written = 0  # the newest step that was written without a line in the log
        self._counts: Counter[tuple[str, str]] = Counter()
        self.stopping = False
        self.ray_failed = self._ray_is_up = False
        self.alarms: list[Alarm] = []
        self.steps = 0
        clock.stage("starting the driver", time.monotonic())

    def read_new_lines(self) -> None:
        """Read the lines added to the log since the last call."""
        for line in self._log.lines():
            found = self._lines.parse(line)
            if found is None:
                self._take_other_line(line)
            else:
                self._take_step(*found)

    def look_at_clock(self) -> None:
        """Show the wait for the next step. If it takes too long, collect stacks and raise an alarm with them."""
        now = time.monotonic()
        self._screen.waiting(self._clock.wait(now), self._clock.slow(now))
        if self._collection is None and (late := self._clock.late(now)) is not None:
            written = _steps_written(self._attempt)
            logged = self._step if self._step is not None else min(written, default=0) - 1
            newest = max(written, default=0)
            if newest > max(logged + 1, self._written):  # samples of a step come before its line
                self._written = newest
                self._clock.wait_for(newest + 1, now)
                log, run = self._attempt.driver_log, self._attempt.run_argument
                self._note([stopped_log_alarm(newest, self._step, log, run=run)])
            else:
                self._collection = late, self._collect()
        if self._collection is not None and self._collection[1].done():
            self._raise_hang()

    def end_collection(self) -> None:
        """Raise the alarm of an unfinished collection with the stacks collected so far."""
        if self._collection is not None:
            self._collection[1].end()
            self._raise_hang()

    def _raise_hang(self) -> None:
        assert self._collection is not None
        wait, collector = self._collection
        self._collection = None
        report = collector.report()
        file = self._attempt.driver_log if report.error else collector.file
        fatal = self._watch.is_fatal("no-progress")
        self._note([hang_alarm(wait, self._step, report, file, run=self._attempt.run_argument, fatal=fatal)])

    def _take_step(self, step: int, data: dict[str, float]) -> None:
        self._writer.write(step, data)
        self.steps += 1
        self._step = step
        self.stopping = self._stop_after is not None and step >= self._stop_after
        duration = seconds(data)
        if duration is not None:
            self._recent = [*self._recent[-9:], duration]
        self._screen.step(step, self._total, data, self._eta(step))
        now = time.monotonic()
        self._clock.step(step, now)
        if step >= self._total:
            self._clock.stage(_LAST_STAGE, now)
        self._note(self._watch.point(step, data))

    def _take_other_line(self, line: str) -> None:
        message = speaker_and_message(line)[1]
        lost = NODE_MARKED_DEAD.search(message) if "marked dead" in message else None
        if lost:
            log, run = self._attempt.driver_log, self._attempt.run_argument
            self._note([lost_node_alarm(lost["address"], self._step, log, run=run)])
        if self.steps:
            return
        self._ray_is_up = self._ray_is_up or _RAY_IS_UP in message
        self.ray_failed = not self._ray_is_up and (self.ray_failed or bool(RAY_NOT_STARTED.search(message)))
        for sign, stage in _STAGES:
            if sign in message:
                self._screen.stage(stage)
                self._clock.stage(stage, time.monotonic())

    def _eta(self, step: int) -> float | None:
        if not self._recent:
            return None
        return sum(self._recent) / len(self._recent) * max(self._total - step, 0)

    def _note(self, alarms: list[Alarm]) -> None:
        for alarm in map(self._lines.in_trainers_words, alarms):
            cause = (alarm.kind, alarm.cause)
            self._counts[cause] += 1
            counted = replace(alarm, count=self._counts[cause])
            self.alarms.append(counted)
            self._attempt.add_alarm(asdict(counted))
            self._screen.alarm(counted)


def _steps_written(attempt: Attempt) -> list[int]:
    """Return the steps whose samples or checkpoint this attempt has written."""
    run = attempt.folder.parents[1]
    began = (
        (attempt.folder / "command.json").stat().st_mtime
    )  # by the clock of the disk, which may be another host's
    steps = []
    for path in (*run.glob("samples/*.jsonl"), *run.glob("checkpoints/*")):
        with contextlib.suppress(OSError):  # an old checkpoint has just been removed
            if (found := re.search(r"\d+\Z", path.stem)) and path.stat().st_mtime >= began:
                steps.append(int(found[0]))
    return steps
