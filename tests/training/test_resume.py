"""When a run can be gone on with, and what is said when it can't."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from npu_rl.errors import NpuRlError
from npu_rl.record.run_record import RunRecord
from npu_rl.training import train
from npu_rl.training.prepare import Prepared, run_facts
from npu_rl.training.train import RunStopped
from tests.training.fake_run import FakeRun


@pytest.fixture
def fake(tmp_path: Path) -> FakeRun:
    return FakeRun(tmp_path)


def begun(fake: FakeRun, *overrides: str) -> tuple[Prepared, RunRecord]:
    prepared = fake.prepared([], overrides)
    return prepared, train.new_record(prepared, fake.runs, "demo", run_facts(prepared))


def saved(record: RunRecord, step: int) -> Path:
    """A checkpoint as verl leaves it."""
    (record.checkpoints / "latest_checkpointed_iteration.txt").write_text(str(step))
    folder = record.checkpoints / f"global_step_{step}"
    folder.mkdir()
    return folder


def resumed(fake: FakeRun, prepared: Prepared) -> RunRecord:
    return train._open_record(prepared, fake.runs, resume=True)


def test_a_run_goes_on_from_its_checkpoint(fake: FakeRun) -> None:
    prepared, record = begun(fake, "checkpoint.every=2")
    saved(record, 2)
    assert resumed(fake, prepared).id == record.id
    stopped = str(RunStopped(signal.SIGINT, record, prepared.recipe))
    assert "its checkpoint of step 2: the same command with --resume" in stopped


@pytest.mark.parametrize(
    ("overrides", "why", "advice"),
    [
        (["checkpoint.every=-1"], "checkpoint.every is -1, which saves none", True),
        (["checkpoint.every=3"], "it ended before the first", False),
    ],
)
def test_without_a_checkpoint_it_is_said_and_resume_not_offered(
    fake: FakeRun, overrides: list[str], why: str, advice: bool
) -> None:
    prepared, record = begun(fake, *overrides)
    with pytest.raises(NpuRlError, match="has no checkpoint to go on from") as caught:
        resumed(fake, prepared)
    stopped = str(RunStopped(signal.SIGTERM, record, prepared.recipe))
    for said in (str(caught.value), stopped):
        assert why in said and "--resume" not in said and "name=" in said
        assert ("checkpoint.every=N" in said) is advice


def test_a_checkpoint_whose_folder_is_gone_is_none(fake: FakeRun) -> None:
    """verl would begin at step 0 without a word, over what the run has."""
    prepared, record = begun(fake, "checkpoint.every=2")
    saved(record, 2).rmdir()
    assert record.latest_checkpoint is None
    with pytest.raises(NpuRlError, match="global_step_2, is gone"):
        resumed(fake, prepared)
    assert "--resume" not in str(RunStopped(signal.SIGINT, record, prepared.recipe))


def test_a_run_that_has_done_its_steps(fake: FakeRun) -> None:
    prepared, record = begun(fake, "checkpoint.every=5")
    saved(record, 5)
    with pytest.raises(NpuRlError, match="has done its 5 steps") as caught:
        resumed(fake, prepared)
    assert "steps=N with N above 5" in str(caught.value)


@pytest.mark.parametrize(("steps", "offered"), [(3, True), (2, False)])
def test_a_run_that_exists_offers_resume_only_below_its_steps(
    fake: FakeRun, steps: int, offered: bool
) -> None:
    _, record = begun(fake, "checkpoint.every=2")
    saved(record, 2)
    with pytest.raises(NpuRlError, match="already exists") as caught:
        train._open_record(fake.prepared([], steps=steps), fake.runs, resume=False)
    assert ("--resume" in str(caught.value)) is offered


@pytest.mark.parametrize("text", ["", "x", "\x00", "9" * 5000])
def test_a_damaged_note_is_no_checkpoint(fake: FakeRun, text: str) -> None:
    _, record = begun(fake)
    (record.checkpoints / "latest_checkpointed_iteration.txt").write_text(text)
    assert record.latest_checkpoint is None
