"""A run of hang_program.py through npu-rl's own driver and a Ray of its own, watched as `train` watches it."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.errors import NpuRlError
from npu_rl.training.monitor.alarm import Alarm
from npu_rl.training.monitor.screen import PlainScreen
from npu_rl.training.run.begin_run import new_record
from npu_rl.training.run.recorded_facts import run_facts
from npu_rl.training.run.train import RunStopped, run_attempt
from tests.training.fake_run import FakeRun

PROGRAM = Path(__file__).with_name("hang_program.py")
# A machine with more to do than it can starts Ray's agents late.
PATIENT_RAY = {
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_raylet_start_wait_time_s": "300",
    "RAY_worker_register_timeout_seconds": "300",
}


@dataclass(frozen=True)
class Hung:
    """What became of a run: its alarms by when they came, and the seconds of it all."""

    alarms: list[tuple[float, Alarm]]
    seconds: float
    error: str
    folder: Path


class Listener(PlainScreen):
    """A screen that keeps the alarms, and ends the run some time after a first one of a hang."""

    def __init__(self, patience: float) -> None:
        super().__init__()
        self.alarms: list[tuple[float, Alarm]] = []
        self._patience = patience

    def alarm(self, alarm: Alarm) -> None:
        super().alarm(alarm)
        self.alarms.append((time.time(), alarm))
        if alarm.kind == "no-progress":
            timer = threading.Timer(self._patience, os.kill, (os.getpid(), signal.SIGINT))
            timer.daemon = True
            timer.start()


def hang(
    folder: Path,
    kind: str,
    *,
    steps: int = 5,
    slow: float = 0.0,
    work: float = 0.0,
    floor: float = 2.0,
    env: Mapping[str, str] = {},
    at_most: float = 1800.0,
) -> Hung:
    """Run it until it ends, or until it has hung and was stopped; `at_most` so many seconds, without an alarm."""
    code = folder / "code"
    code.mkdir(exist_ok=True)
    shutil.copy(PROGRAM, code)
    fake = FakeRun(folder)
    words = [f"watch.phase_timeout={floor:g}", f"env.HANG_PLAN={folder},{kind},{steps},{slow:g},{work:g}"]
    words += ["checkpoint.every=3", "logging.validate_every=3"] if slow else []
    prepared = fake.prepared(
        [], [*words, *(f"env.{name}={value}" for name, value in {**PATIENT_RAY, **env}.items())], steps
    )
    script = folder / "python"
    driver = f'if [ "$2" = npu_rl_driver ]; then exec {sys.executable} -m npu_rl_driver hang_program; fi\n'
    script.write_text(script.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{driver}", 1))
    screen, error, began = Listener(0.5), "", time.monotonic()
    record = new_record(prepared, fake.runs, "demo", run_facts(prepared))
    overdue = threading.Event()

    def end() -> None:
        overdue.set()
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(at_most, end)
    timer.daemon = True
    timer.start()
    try:
        run_attempt(prepared, record, {}, screen)
    except RunStopped as stopped:
        if overdue.is_set():
            error = f"stopped after {at_most:g} s"
        elif not screen.alarms:  # by a person
            raise KeyboardInterrupt from stopped
    except NpuRlError as failed:
        error = str(failed)
    finally:
        timer.cancel()
    attempt = record.folder / "attempts" / "1"
    return Hung(screen.alarms, time.monotonic() - began, error, attempt)
