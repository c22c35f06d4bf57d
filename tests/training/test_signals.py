"""Which signals end a run in order."""

from __future__ import annotations

import io
import json
import os
import signal
from pathlib import Path

import pytest

from npu_rl.training.monitor.screen import PlainScreen
from npu_rl.training.run.attempt_runner import _signals
from npu_rl.training.run.begin_run import new_record
from npu_rl.training.run.recorded_facts import run_facts
from npu_rl.training.run.train import RunStopped, run_attempt
from tests.training.fake_run import FakeRun


@pytest.mark.parametrize(
    ("before", "heard"), [(signal.SIG_DFL, [signal.SIGHUP]), (signal.SIG_IGN, [])], ids=["", "nohup"]
)
def test_a_hang_up_ends_a_run_but_under_nohup(before: signal.Handlers, heard: list[int]) -> None:
    restored = signal.signal(signal.SIGHUP, before)
    try:
        with _signals() as asked:
            signal.raise_signal(signal.SIGHUP)
        assert asked == heard
        assert signal.getsignal(signal.SIGHUP) is before
    finally:
        signal.signal(signal.SIGHUP, restored)


@pytest.mark.second
def test_a_signal_during_a_planned_stop_ends_the_rehearsal(tmp_path: Path) -> None:
    """It came between a rehearsal's stop after a step and its resume, and the rehearsal went on."""
    run = FakeRun(tmp_path)
    prepared = run.prepared(["steps=2", "forever", f"tells={os.getpid()}"])
    record = new_record(prepared, run.runs, "demo", run_facts(prepared))
    with pytest.raises(RunStopped):
        run_attempt(prepared, record, {}, PlainScreen(io.StringIO()), resume=False, stop_after=2)
    assert json.loads((record.folder / "attempts" / "1" / "end.json").read_text())["signal"] == "SIGTERM"
