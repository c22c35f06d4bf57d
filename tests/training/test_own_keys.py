"""A run of a trainer whose keys are its own: its record, its alarms, and going on from its checkpoints."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import yaml

from npu_rl.common.errors import NpuRlError
from npu_rl.training.run import begin_run, train
from npu_rl.training.run.prepare import compose
from npu_rl.training.run.recorded_facts import run_facts
from npu_rl.training.run.train import RunFailed, RunStopped
from tests.code_trees import lay
from tests.own_trainer import TREE, write_recipe
from tests.training.fake_run import FakeRun

PROGRAM = Path(__file__).with_name("own_trainer_program.py")


@pytest.fixture
def fake(tmp_path: Path) -> FakeRun:
    return FakeRun(tmp_path, str(write_recipe(tmp_path)), PROGRAM)


def metrics(fake: FakeRun, attempt: int) -> list[tuple[int, float]]:
    lines = (fake.runs / "demo" / "attempts" / str(attempt) / "metrics.jsonl").read_text().splitlines()
    return [(row["step"], row["data"]["critic/score/mean"]) for row in map(json.loads, lines)]


def command(fake: FakeRun, attempt: int) -> list[str]:
    file = fake.runs / "demo" / "attempts" / str(attempt) / "command.json"
    return list(json.loads(file.read_text())["command"])


def test_its_lines_are_recorded_and_shown(fake: FakeRun) -> None:
    run, shown = fake.train([], steps=4)
    assert run.to_json()["curve"] == [[1, 0.1], [2, 0.2], [3, 0.3], [4, 0.4]]
    assert "step 1/4 reward 0.100 0.50 s" in shown
    assert metrics(fake, 1) == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    assert run.record.latest_checkpoint == 4
    said = command(fake, 1)
    assert f"++actor.save={fake.runs}/demo/checkpoints" in said
    assert not any(word.startswith(("++actor.load", "++trainer", "++data")) for word in said)


@pytest.mark.second
def test_a_run_that_was_killed_goes_on_from_its_checkpoint(fake: FakeRun) -> None:
    with pytest.raises(RunFailed, match=r"signal 9|137"):
        fake.train(["die=3"], steps=6)
    prepared = fake.prepared([], steps=6)
    record = begin_run.resumed_record(prepared, fake.runs, {}, print)
    assert record.latest_checkpoint == 2
    run, shown = fake.train([], steps=6, resume=True)
    assert metrics(fake, 1)[-1][0] == 3
    assert [step for step, _ in metrics(fake, 2)] == [3, 4, 5, 6]
    assert [point.step for point in run.points] == [1, 2, 3, 4, 5, 6]
    assert "step 3/6" in shown
    again = command(fake, 2)
    assert f"++actor.load={fake.runs}/demo/checkpoints" in again
    assert again[-1] == "++actor.finetune=false"
    with pytest.raises(NpuRlError, match="has done its 6 steps"):
        begin_run.resumed_record(prepared, fake.runs, {}, print)


def test_an_alarm_names_the_metric_that_the_log_has(fake: FakeRun) -> None:
    run, shown = fake.train(["nan=2"], steps=3)
    (alarm,) = run.ended.alarms
    assert (alarm.kind, alarm.place) == ("nan", "grpo/score/mean")
    assert "WARNING: Step 2: grpo/score/mean is nan" in shown


def test_without_the_keys_of_checkpoints_it_is_said_that_a_run_can_not_go_on(fake: FakeRun) -> None:
    prepared = fake.prepared([], ["trainer.keys.checkpoint.load=null"])
    record = begin_run.new_record(prepared, fake.runs, "demo", run_facts(prepared))
    (record.checkpoints / "latest_checkpointed_iteration.txt").write_text("2")
    (record.checkpoints / "iter_0000002").mkdir()
    with pytest.raises(NpuRlError, match=r"trainer\.keys\.checkpoint needs folder and load"):
        begin_run.resumed_record(prepared, fake.runs, {}, print)
    assert "--resume" not in str(RunStopped(signal.SIGINT, record, prepared.recipe))
    with pytest.raises(NpuRlError, match="already exists") as caught:
        begin_run.new_record(prepared, fake.runs, "demo", run_facts(prepared))
    assert "--resume" not in str(caught.value)


class TestATrainerWithoutHydra:
    """Its configuration is a file that npu-rl writes, with the recipe's values in it."""

    @pytest.fixture
    def fake(self, tmp_path: Path) -> FakeRun:
        tree = {
            **TREE,
            "configs/own.yaml": "training: {train_iters: 9, other: [1, {a: b}]}\nactor: {finetune: true}\n",
        }
        lay(tmp_path / "code", tree)
        recipe = write_recipe(tmp_path)
        text = recipe.read_text().replace("  log:", '  arguments: [--config, "{config}", -v]\n  log:')
        recipe.write_text(text)
        return FakeRun(tmp_path, str(recipe), PROGRAM)

    @pytest.mark.second
    def test_it_runs_and_goes_on_by_that_file(self, fake: FakeRun) -> None:
        run, _ = fake.train([], steps=2)
        assert [point.step for point in run.points] == [1, 2]
        said = command(fake, 1)
        assert said[1:4] == ["-m", "npu_rl_driver", "own.train"]
        assert said[4] == "--config" and said[5].endswith("/config.yaml") and said[6:] == ["-v"]
        assert not Path(said[5]).exists(), "it may hold secrets, so it lies in the folder that is removed"
        run, _ = fake.train([], steps=4, resume=True)
        assert [step for step, _ in metrics(fake, 2)] == [3, 4]

    def test_the_file_is_the_trainers_with_the_settings_over_it(self, fake: FakeRun) -> None:
        prepared = fake.prepared([], ["training.other=[2]", "new.section.key=x"], steps=6)
        composed = compose(prepared, prepared.command(fake.runs, "0" * 32, 1, None))
        assert composed == {
            "training": {"train_iters": 6, "other": [2], "save_interval": 2},
            "actor": {"finetune": True, "save": f"{fake.runs}/demo/checkpoints"},
            "rl": {"npus": 2},
            "new": {"section": {"key": "x"}},
        }

    def test_a_dry_run_writes_it_beside_the_script_that_names_it(self, fake: FakeRun) -> None:
        prepared = fake.prepared([], ["training.api_token=hidden-by-mask"], steps=6)
        written = train.write_dry_run(prepared)
        assert "config.yaml" in written.files
        file = written.folder / "config.yaml"
        assert yaml.safe_load(file.read_text())["training"]["train_iters"] == 6
        assert "hidden-by-mask" not in file.read_text()
        assert str(file) in (written.folder / "run.sh").read_text()
        assert str(file) in written.command
