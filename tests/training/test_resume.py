"""When a run can be gone on with, and what is said when it can't."""

from __future__ import annotations

import io
import shutil
import signal
import zipfile
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.errors import HostError, NpuRlError, UsageError
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.training.monitor.screen import PlainScreen
from npu_rl.training.record.recorded_run import recorded_run
from npu_rl.training.record.resumed_overrides import changes_since, last_attempt, resumed_overrides
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.run import begin_run
from npu_rl.training.run.prepare import Prepared
from npu_rl.training.run.recorded_facts import run_facts
from npu_rl.training.run.train import RunFailed, RunStopped, train
from tests.training.fake_run import FakeRun

TRACKER = "latest_checkpointed_iteration.txt"
OF_ONE_RANK = [
    "actor/model_world_size_1_rank_0.pt",
    "actor/optim_world_size_1_rank_0.pt",
    "actor/extra_state_world_size_1_rank_0.pt",
    "data.pt",
]


@pytest.fixture
def fake(tmp_path: Path) -> FakeRun:
    return FakeRun(tmp_path)


def begun(fake: FakeRun, *overrides: str) -> tuple[Prepared, RunRecord]:
    prepared = fake.prepared([], overrides)
    return prepared, begin_run.new_record(prepared, fake.runs, "demo", run_facts(prepared))


def saved(record: RunRecord, step: int) -> Path:
    """A checkpoint as verl leaves it."""
    (record.checkpoints / TRACKER).write_text(str(step))
    folder = record.checkpoints / f"global_step_{step}"
    for name in OF_ONE_RANK:
        packed(folder / name)
    return folder


def packed(path: Path) -> None:
    """A file as torch.save writes one: a zip file, with its directory at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", b"x" * 1000)


def resumed(
    fake: FakeRun, prepared: Prepared, said: list[str] | None = None, config: dict[str, Any] | None = None
) -> RunRecord:
    notify = ([] if said is None else said).append
    return begin_run.resumed_record(prepared, fake.runs, config or {}, notify)


def test_a_resumed_run_has_its_last_attempts_overrides_and_what_changed_is_said(fake: FakeRun) -> None:
    fake.train(["steps=2"], ["checkpoint.every=2", "optimizer.lr=2e-3"], steps=2)
    saved(RunRecord.load(fake.runs, "demo"), 2)
    recipe, given = load_recipe("quickstart"), ["name=demo", "steps=9", "optimizer.lr=9e-3"]
    again = load_recipe("quickstart", resumed_overrides(recipe, given, fake.runs))
    assert (again.recipe.name, again.recipe.checkpoint.every, again.recipe.steps) == ("demo", 2, 9)
    last = last_attempt(fake.runs, "demo")
    assert last is not None and changes_since(last, again) == "optimizer.lr 2e-3 -> 9e-3, steps 2 -> 9"
    same = load_recipe("quickstart", resumed_overrides(recipe, ["name=demo"], fake.runs))
    assert changes_since(last, same) == ""
    with pytest.raises(RunFailed):  # after 3 of 9 steps
        fake.train(["steps=3"], ["optimizer.lr=9e-3"], steps=9, resume=True)
    stopped = str(RunStopped(signal.SIGINT, RunRecord.load(fake.runs, "demo"), same.recipe))
    command = "npu-rl train quickstart steps=9 reward.goal=null optimizer.lr=9e-3 name=demo --resume"
    assert f"its checkpoint of step 2: {command} --workspace {fake.root}" in stopped


def test_a_secret_that_the_record_has_masked_is_asked_for(fake: FakeRun) -> None:
    fake.train(["steps=5"], ["env.MY_SECRET_KEY=S3CRET"])
    recipe = load_recipe("quickstart")
    with pytest.raises(UsageError, match="MY_SECRET_KEY of run demo is a secret"):
        resumed_overrides(recipe, ["name=demo"], fake.runs)
    again = resumed_overrides(recipe, ["name=demo", "env.MY_SECRET_KEY=S3CRET"], fake.runs)
    assert "env.MY_SECRET_KEY=S3CRET" in again


def test_a_start_that_was_refused_takes_no_name(fake: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its driver can't be started; one that began to train keeps its record."""
    prepared = fake.prepared([])
    monkeypatch.setattr("npu_rl.training.run.begin_run.compose", lambda *_: {})
    (fake.root / "python").chmod(0o644)
    shown = io.StringIO()
    with pytest.raises(HostError):
        train(prepared, PlainScreen(shown))
    assert not (fake.runs / "demo").exists() and "the name demo is free" in shown.getvalue()
    with pytest.raises(RunFailed):
        train(fake.prepared(["raise"]), PlainScreen(shown))
    assert recorded_run(fake.runs, "demo").state == "failed"


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
    with pytest.raises(NpuRlError, match="has no checkpoint to resume from") as caught:
        resumed(fake, prepared)
    stopped = str(RunStopped(signal.SIGTERM, record, prepared.recipe, named=True))
    for said in (str(caught.value), stopped):
        assert why in said and "--resume" not in said and "name=" in said
        assert ("checkpoint.every=N" in said) is advice


def test_a_checkpoint_whose_folder_is_gone_is_none(fake: FakeRun) -> None:
    """verl would begin at step 0 without a word, over what the run has."""
    prepared, record = begun(fake, "checkpoint.every=2")
    shutil.rmtree(saved(record, 2))
    assert record.latest_checkpoint is None
    with pytest.raises(NpuRlError, match="global_step_2, is gone"):
        resumed(fake, prepared)
    assert "--resume" not in str(RunStopped(signal.SIGINT, record, prepared.recipe))


@pytest.mark.parametrize("name", OF_ONE_RANK)
@pytest.mark.parametrize("damage", ["missing", "empty", "cut off"])
def test_the_newest_whole_step_is_gone_on_from(fake: FakeRun, name: str, damage: str) -> None:
    prepared, record = begun(fake, "checkpoint.every=1", "checkpoint.keep=2")
    for step in (1, 2, 3, 4):
        saved(record, step)
    file = record.checkpoints / "global_step_4" / name
    data = file.read_bytes()
    file.unlink() if damage == "missing" else file.write_bytes(
        data[: len(data) // 2 if damage == "cut off" else 0]
    )
    said: list[str] = []
    resumed(fake, prepared, said, {"trainer": {"max_actor_ckpt_to_keep": 3}})
    assert said[0].startswith(f"step 4 is not whole: {name} is {damage}")
    assert said[0].endswith("; whole: 1, 2, 3")
    assert said[1] == "the trainer recorded step 4; resuming from 3"
    assert said[2].endswith("since the trainer deletes only its own: steps 1, 2, 3")
    assert (record.checkpoints / TRACKER).read_text() == "3"
    assert not (record.checkpoints / "global_step_4" / "data.pt").exists(), (
        "it is written again, into the same files"
    )
    assert resumed(fake, prepared).id == record.id


def test_a_crash_around_the_trainers_own_note(fake: FakeRun) -> None:
    """verl opens it with "w" and then writes: empty in between, which int() of verl's can't read."""
    prepared, record = begun(fake, "checkpoint.every=1")
    for step in (1, 2):
        saved(record, step)
    for text in ("", "1"):
        (record.checkpoints / TRACKER).write_text(text)
        stopped = str(RunStopped(signal.SIGINT, record, prepared.recipe))
        assert "--resume" in stopped
        said: list[str] = []
        resumed(fake, prepared, said)
        assert said == [f"the trainer recorded {'step 1' if text else 'no step'}; resuming from 2"]
        assert (record.checkpoints / TRACKER).read_text() == "2"


def test_no_step_is_whole(fake: FakeRun) -> None:
    prepared, record = begun(fake, "checkpoint.every=1")
    for step in range(1, 8):
        (saved(record, step) / OF_ONE_RANK[1]).unlink()
    before = sorted(record.checkpoints.rglob("*"))
    with pytest.raises(NpuRlError, match="has no complete checkpoint to resume from") as caught:
        resumed(fake, prepared)
    assert "step 7 is not whole: actor/optim_world_size_1_rank_0.pt is missing" in str(caught.value)
    assert "and 2 more" in str(caught.value) and "whole: none" in str(caught.value)
    assert sorted(record.checkpoints.rglob("*")) == before, "nothing is changed"
