"""What DAPO's trainer counts and saves last. In its own loop: patchsets/witnesses/dapo-counts-generations.py."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from npu_rl.runtime import dapo_steps

OFF = "NPU_RL_DAPO_STEPS"


def saved(after: int, *, every: int, loaded: int = 0) -> list[int]:
    """The step that is saved by a trainer whose next step is `after`."""
    steps: list[int] = []
    config = SimpleNamespace(trainer=SimpleNamespace(save_freq=every))
    trainer = SimpleNamespace(global_steps=after, config=config)
    trainer._save_checkpoint = lambda: steps.append(trainer.global_steps)
    dapo_steps.save_last(trainer, loaded)
    return steps


def test_the_last_step_is_saved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert saved(4, every=2) == [3]
    assert saved(5, every=2) == []  # the loop has saved step 4
    assert saved(4, every=-1) == []
    assert saved(1, every=2) == []  # nothing was trained
    assert saved(4, every=2, loaded=3) == []  # nothing since it was loaded
    monkeypatch.setenv(OFF, "0")
    assert saved(4, every=2) == []


def test_switched_off_batches_count(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = SimpleNamespace(global_steps=3, gen_steps=5)
    assert (dapo_steps.counted(trainer), dapo_steps.of_skipped()) == (3, 0)
    monkeypatch.setenv(OFF, "0")
    assert (dapo_steps.counted(trainer), dapo_steps.of_skipped()) == (5, 1)
