"""Running one attempt: start the driver, follow its log, stop its processes, and return the outcome."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from npu_rl.common.process import Child, processes_of, start, stop
from npu_rl.training.monitor.explain_failure import Explanation, explain
from npu_rl.training.monitor.log_lines import speaker_and_message
from npu_rl.training.monitor.metrics import MetricsWriter, seconds
from npu_rl.training.monitor.screen import Screen
from npu_rl.training.monitor.step_lines import StepLines
from npu_rl.training.monitor.tail import follow
from npu_rl.training.monitor.watch import Alarm, Watch
from npu_rl.training.record.attempt import Attempt
from npu_rl.training.record.worker_logs import keep_worker_logs
from npu_rl.training.run.node_reports import fetch_worker_logs

_PAUSE = 0.1  # seconds between reads of the log

# Text in the driver's log at the beginning of a stage (from the driver; verl/trainer/main_ppo.py at 0.5.0).
_STAGES = (
    ("npu-rl: starting Ray", "starting Ray"),
    ("npu-rl: comparing the nodes", "comparing the nodes"),
    ("npu-rl: Ray is up", "loading the trainer"),
    ("TaskRunner hostname:", "reading the data"),
    ("Total training steps:", "building the workers"),
    ("Training Progress:", "first step"),
)


@dataclass
class AttemptResult:
    """The result of an attempt; what stopped it, if anything did, is `signal` (to npu-rl), `fatal` or `planned`."""

    code: int
    signal: int | None = None
    fatal: Alarm | None = None
    planned: bool = False
    alarms: list[Alarm] = field(default_factory=list)
    killed: list[int] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0

    @property
    def outcome(self) -> str:
        """The outcome for the record."""
        if self.signal is not None or self.fatal is not None or self.planned:
            return "stopped"
        return "done" if self.code == 0 else "failed"


def attempt_once(
    attempt: Attempt,
    argv: list[str],
    environment: Mapping[str, str],
    *,
    run_id: str,
    total: int,
    watch: Watch,
    screen: Screen,
    ray: Path,
    lines: StepLines = StepLines(),  # noqa: B008  it can't be changed
    grace: float = 15.0,
    stop_after: int | None = None,
) -> AttemptResult:
    """Run the driver until it ends, and stop all processes of the run. The caller records the outcome.

    Args:
        total: Steps of the whole run.
        ray: Ray's folder, from which the workers' logs are copied into the attempt.
        lines: How the trainer's log writes the metrics of a step.
        grace: Seconds the processes have to exit before they are killed.
        stop_after: Step after which the attempt is stopped, as by a user.
    """
    began = time.monotonic()
    with _signals() as received, MetricsWriter(attempt.metrics) as writer:
        child = start(argv, env=environment, cwd=attempt.folder, output=attempt.driver_log)
        follower = _Follower(attempt, writer, watch, screen, total, lines, stop_after)
        try:
            attempt.record_driver(child.pid)
            ended = follower.until_end(child, received)
        finally:
            # An exited driver may have left workers; a running one is terminated first.
            killed = stop(child, run_id, grace) if child.poll() is None or processes_of(run_id) else []
            follower.read_new_lines()
            keep_worker_logs(ray, attempt.workers)
            fetch_worker_logs(attempt, argv[0], environment)
    ended.killed = killed
    code = child.wait(10.0)
    ended.code = code if code is not None else -signal.SIGKILL
    ended.alarms, ended.steps = follower.alarms, follower.steps
    ended.seconds = time.monotonic() - began
    return ended


class _Follower:
    """Reads the growing log: metrics go to the file; stages, steps and alarms go to the screen."""

    def __init__(
        self,
        attempt: Attempt,
        writer: MetricsWriter,
        watch: Watch,
        screen: Screen,
        total: int,
        lines: StepLines,
        stop_after: int | None,
    ) -> None:
        self._stop_after = stop_after
        self._stopping = False
        self._attempt = attempt
        self._tail = follow(attempt.driver_log)
        self._writer = writer
        self._watch = watch
        self._screen = screen
        self._total = total
        self._lines = lines
        self._recent: list[float] = []
        self.alarms: list[Alarm] = []
        self.steps = 0

    def until_end(self, child: Child, received: list[int]) -> AttemptResult:
        """Follow the log until the driver has exited, a signal came, or an alarm was fatal."""
        while True:
            running = child.poll() is None
            self.read_new_lines()
            fatal = next((alarm for alarm in self.alarms if alarm.fatal), None)
            if received:
                self._screen.stage("stopping the run's processes")
                return AttemptResult(0, signal=received[0])
            if fatal is not None or not running:
                return AttemptResult(0, fatal=fatal)
            if self._stopping:
                return AttemptResult(0, planned=True)
            self._note(self._watch.tick(time.monotonic()))
            time.sleep(_PAUSE)

    def read_new_lines(self) -> None:
        """Read the lines added to the log since the last call."""
        for line in self._tail.lines():
            found = self._lines.parse(line)
            if found is None:
                self._stage(line)
                continue
            step, data = found
            self._writer.write(step, data)
            self.steps += 1
            self._stopping = self._stop_after is not None and step >= self._stop_after
            duration = seconds(data)
            if duration is not None:
                self._recent = [*self._recent[-9:], duration]
            self._screen.step(step, self._total, data, self._eta(step))
            self._note(self._watch.point(step, data, time.monotonic()))

    def _stage(self, line: str) -> None:
        if self.steps:
            return
        message = speaker_and_message(line)[1]
        for sign, stage in _STAGES:
            if sign in message:
                self._screen.stage(stage)

    def _eta(self, step: int) -> float | None:
        if not self._recent:
            return None
        return sum(self._recent) / len(self._recent) * max(self._total - step, 0)

    def _note(self, alarms: list[Alarm]) -> None:
        for alarm in map(self._lines.in_trainers_words, alarms):
            self.alarms.append(alarm)
            self._attempt.add_alarm(alarm.to_json())
            self._screen.alarm(alarm)


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP; a second signal raises KeyboardInterrupt.

    SIGHUP stays ignored if it was, as under nohup.
    """
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        if received:
            raise KeyboardInterrupt
        received.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def explain_attempt(attempt: Attempt, code: int) -> Explanation | None:
    """Explain the failure of an attempt from its logs."""
    return explain([attempt.driver_log, *sorted(attempt.workers.rglob("*.err"))], code)
