"""An attempt as `train` makes one: a real driver, followed to its end; the record and the screen afterwards."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from npu_rl.training.browse.run_page import RunPage
from npu_rl.training.monitor.metrics import rewards
from npu_rl.training.record.recorded_run import recorded_run
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.run.train import RunFailed
from tests.browse.recorded import checkpoint
from tests.training.fake_run import FakeRun
from tests.training.processes import left_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a run's processes are found through /proc")


def test_a_run_that_ends_well(tmp_path: Path) -> None:
    trained, shown = FakeRun(tmp_path).train(["steps=5", "logs=2"])
    assert shown.splitlines()[-1] == "step 5/5 reward 0.500 0.05 s ETA 0:00"
    assert trained.to_json()["curve"] == [[step, step / 10] for step in (1, 2, 3, 4, 5)]
    record = RunRecord.load(tmp_path / "runs", "demo")
    (attempt,) = record.attempts
    assert (attempt.outcome, attempt.code) == ("done", 0)
    assert rewards(record.curve()) == rewards(trained.points)
    assert sorted(path.name for path in (attempt.folder / "workers").iterdir()) == [
        "worker-0000-01000000-0.out",
        "worker-0001-01000000-1.out",
    ]
    assert attempt.alarms == []
    assert left_of(record.folder) == []


def test_a_run_that_fails_says_why_and_leaves_no_process(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="exit status 1") as caught:
        FakeRun(tmp_path).train(["steps=2", "raise"])
    assert "ValueError: batch sizes differ" in str(caught.value)
    failure = RunPage(recorded_run(tmp_path / "runs", "demo")).failure
    assert failure is not None and "batch sizes differ\nraised at" in failure.cause
    assert [point.step for point in caught.value.points] == [1, 2]
    record = RunRecord.load(tmp_path / "runs", "demo")
    (attempt,) = record.attempts
    assert (attempt.outcome, attempt.code) == ("failed", 1)
    assert left_of(record.folder) == []


def test_a_failure_that_nothing_explains_has_the_end_of_the_log(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="exit status 3") as caught:
        FakeRun(tmp_path).train(["steps=1", "odd"], steps=2)
    assert "vendor: no luck today" in str(caught.value) and "driver.log" in str(caught.value.where)


def test_an_error_that_a_worker_printed_to_its_output_is_found(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="exit status 1") as caught:
        FakeRun(tmp_path).train(["steps=1", "engine"])
    assert "raised at /worker.py:260" in str(caught.value)


def ended(place: Path) -> tuple[object, object]:
    """The command's exit code and the driver's, of the record of the last attempt."""
    end = json.loads(max(place.glob("runs/demo/attempts/*/end.json")).read_text())
    return end["code"], end["driver_code"]


@pytest.mark.second
def test_ray_that_did_not_start_is_started_once_more(tmp_path: Path) -> None:
    trained, shown = FakeRun(tmp_path).train(["no-ray=1", "steps=5"])
    assert "Ray did not start. Trying once more" in shown.splitlines()
    assert trained.points[-1].step == 5 and len(trained.record.attempts) == 1
    assert ended(tmp_path) == (0, 0)


@pytest.mark.parametrize("options", [["no-ray=2"], ["no-ray=0", "ray-then"]])
@pytest.mark.second
def test_ray_is_not_started_a_third_time_nor_once_it_was_up(tmp_path: Path, options: list[str]) -> None:
    with pytest.raises(RunFailed, match="exit status 1") as caught:
        FakeRun(tmp_path).train([*options, "steps=5"])
    assert "Ray on this machine ended" in str(caught.value) and "that node" not in str(caught.value)
    log = (tmp_path / "runs/demo/attempts/1/driver.log").read_text()
    assert log.count("Failed to register worker") == (2 if options == ["no-ray=2"] else 1)
    assert ended(tmp_path) == (1, 1)


def test_a_run_that_missed_its_goal_has_failed_with_that_reason(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="below the goal"):
        FakeRun(tmp_path).train(["steps=5"], ["reward.goal=0.9"])
    assert ended(tmp_path) == (1, 0)
    (attempt,) = RunRecord.load(tmp_path / "runs", "demo").attempts
    assert (attempt.outcome, attempt.code) == ("failed", 1)
    page = RunPage(recorded_run(tmp_path / "runs", "demo"))
    assert page.run.state == "failed" and page.failure is not None
    assert "below the goal of 0.9" in page.failure.cause and "metrics.jsonl" in page.failure.where


def test_a_trainer_that_ends_early_has_failed_and_can_go_on(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="after step 3 of 5"):
        FakeRun(tmp_path).train(["steps=3"])
    checkpoint(RunRecord.load(tmp_path / "runs", "demo"), 2)
    page = RunPage(recorded_run(tmp_path / "runs", "demo"))
    assert page.run.state == "failed" and page.failure is not None
    assert page.failure.cause.startswith("The trainer ended by itself after step 3 of 5")
    assert any("--resume" in line for line in page.next)
    assert not any("weights export" in line for line in page.next)


SECRETS = {
    "WANDB_API_KEY": "wk-S3CRET-1",
    "PYTORCH_KEY": "pk-S3CRET-2",
    "RAY_AUTH": "ra-S3CRET-3",
    "HTTP_PROXY": "http://me:pr S3CRET-4@proxy:1/",
}
OVERRIDES = [
    "env.MY_SECRET_KEY=en-S3CRET-5 with spaces",
    "logging.project=https://u:pj-S3CRET-6@h/x",
    "overrides.trainer.wandb_api_key=ov-S3CRET-7",
    "reward.arguments.judge_key=re-S3CRET-8",
]


def test_no_secret_stands_in_any_file_of_the_record_and_the_trainer_gets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    trained, shown = FakeRun(tmp_path).train(["steps=5", "hydra", "logs=1"], OVERRIDES)
    folder = trained.record.folder
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"overrides.yaml", "config.yaml", "driver.log", "composed.json"}
    leaks = [
        f"{path}: {line}" for path in files for line in path.read_bytes().split(b"\n") if b"S3CRET" in line
    ]
    assert leaks == []
    assert "S3CRET" not in shown
    log = (folder / "attempts/1/driver.log").read_text()
    for name in (*SECRETS, "MY_SECRET_KEY"):
        assert f"environment {name} is " in log, "the trainer has it"
    assert "worker 0 says ***" in (folder / "attempts/1/workers/worker-0000-01000000-0.out").read_text()
    assert (folder / "attempts/1/hydra/.hydra/config.pkl").read_bytes() == b"\0pickle"
    begun = json.loads((folder / "attempts/1/command.json").read_text())
    assert "env.MY_SECRET_KEY=***" in begun["overrides"]
    assert 'MY_SECRET_KEY: "***"' in (folder / "recipe.yaml").read_text()
    composed = json.loads((folder / "attempts/1/composed.json").read_text())
    assert composed == {"trainer": {"project_name": "https://***@h/x"}}
    assert len(trained.points) == 5
