"""Which signals end a run in order."""

from __future__ import annotations

import signal

import pytest

from npu_rl.training.run.attempt_runner import _signals


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
