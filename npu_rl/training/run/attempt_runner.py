"""Running one attempt: start the driver, follow its log, stop its processes, and return the outcome."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

from npu_rl.common.errors import HostError
from npu_rl.common.process import Child, processes_of, start, stop
from npu_rl.training.monitor.alarm import Alarm
from npu_rl.training.monitor.metrics import MetricsWriter
from npu_rl.training.monitor.screen import PlainScreen
from npu_rl.training.monitor.step_clock import StepClock
from npu_rl.training.monitor.step_lines import StepLines
from npu_rl.training.monitor.watch import Watch
from npu_rl.training.record.attempt import Attempt
from npu_rl.training.record.worker_logs import keep_worker_logs
from npu_rl.training.run.follower import Follower
from npu_rl.training.run.hang_stacks import StackCollector
from npu_rl.training.run.node_reports import fetch_worker_logs

_PAUSE = 0.1  # seconds between reads of the log


@dataclass
class AttemptResult:
    """The result of an attempt. `signal` (sent to npu-rl), `fatal` and `planned` are causes that stopped it."""

    code: int
    signal: int | None = None
    fatal: Alarm | None = None
    planned: bool = False
    alarms: list[Alarm] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def outcome(self) -> str:
        """The outcome for the record."""
        if self.signal is not None or self.fatal is not None or self.planned:
            return "stopped"
        return "done" if self.code == 0 else "failed"

    @property
    def exit_code(self) -> int:
        """The exit code of the command, as far as the attempt decides it: a goal may be missed, too."""
        if self.signal is not None:
            return 128 + self.signal
        if self.fatal is not None or self.planned:
            return 1 if self.fatal is not None else 0
        return self.code if self.code in (0, HostError.exit_code) else 1


def attempt_once(
    attempt: Attempt,
    argv: list[str],
    environment: Mapping[str, str],
    *,
    run_id: str,
    total: int,
    watch: Watch,
    clock: StepClock,
    screen: PlainScreen,
    ray: Path,
    lines: StepLines = StepLines(),  # noqa: B008  it can't be changed
    grace: float = 15.0,
    stop_after: int | None = None,
) -> AttemptResult:
    """Run the driver until it ends, then stop all processes of the run. The caller records the outcome.

    Args:
        total: Steps of the whole run.
        clock: How long a step may take.
        ray: Ray's folder, from which the workers' logs are copied into the attempt.
        lines: How the trainer's log writes the metrics of a step.
        grace: Seconds the processes have to exit before they are killed.
        stop_after: Step after which the attempt is stopped, as by a user.
    """
    began = time.monotonic()
    begin = partial(start, argv, env=environment, cwd=attempt.folder, output=attempt.driver_log)
    with _signals() as received, MetricsWriter(attempt.metrics) as writer:
        child = begin()
        collect = partial(StackCollector, attempt, argv[0], environment)
        follower = Follower(attempt, writer, watch, clock, screen, total, lines, stop_after, collect)
        try:
            attempt.record_driver(child.pid)
            ended = _until_end(follower, child, received, screen)
            if follower.ray_failed and ended.signal is None and child.poll() != 0:  # nothing has begun
                screen.note("Ray did not start. Trying once more")
                stop(child, run_id, grace)
                follower.ray_failed = False
                child = begin()
                attempt.record_driver(child.pid)
                ended = _until_end(follower, child, received, screen)
        finally:
            # An exited driver may have left workers; a running one is terminated first.
            if child.poll() is None or processes_of(run_id):
                stop(child, run_id, grace)
            follower.read_new_lines()
            follower.end_collection()
            keep_worker_logs(ray, attempt.workers)
            fetch_worker_logs(attempt, argv[0], environment)
    if ended.planned and received:  # while the planned stop went on: the user ends the whole rehearsal
        ended.signal = received[0]
    code = child.wait(10.0)
    ended.code = code if code is not None else -signal.SIGKILL
    ended.alarms = follower.alarms
    ended.seconds = time.monotonic() - began
    return ended


def _until_end(follower: Follower, child: Child, received: list[int], screen: PlainScreen) -> AttemptResult:
    """Follow the log until the driver has exited, a signal came, or an alarm was fatal."""
    while True:
        running = child.poll() is None
        follower.read_new_lines()
        fatal = next((alarm for alarm in follower.alarms if alarm.fatal), None)
        if received:
            screen.stage("stopping the run's processes")
            return AttemptResult(0, signal=received[0])
        if fatal is not None or not running:
            return AttemptResult(0, fatal=fatal)
        if follower.stopping:
            return AttemptResult(0, planned=True)
        follower.look_at_clock()
        time.sleep(_PAUSE)


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP; a second signal raises KeyboardInterrupt.

    SIGHUP stays ignored if it was, as under nohup.
    """
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        if received:
            raise KeyboardInterrupt(number)
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
