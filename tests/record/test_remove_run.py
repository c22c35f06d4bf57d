"""`runs rm`: what a record lists goes, at one moment or repeatably; nothing else does, and no run that is in use."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from npu_rl.common.errors import NpuRlError
from npu_rl.training.monitor.metrics import MetricsWriter
from npu_rl.training.record.remove_run import remove_run
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.record.saved_checkpoints.checkpoint_folders import LATEST
from npu_rl.training.record.stop_run import stop_run
from tests.training.processes import bystander


def recorded(root: Path, name: str = "demo", recipe: str = "schema: 1\n", outcome: str = "done") -> RunRecord:
    """A run of one attempt, with a checkpoint, samples and what a trainer leaves."""
    record = RunRecord.create(root, name, {"recipe": name}, lock=b"{}")
    attempt = record.begin_attempt(["driver"], {}, {}, recipe)
    with MetricsWriter(attempt.metrics) as writer:
        writer.write(1, {"critic/score/mean": 0.5})
    (attempt.folder / "kernel_meta").mkdir()
    (attempt.workers / "worker-1.out").write_text("said")
    attempt.close(outcome, 0)
    step = record.checkpoints / "global_step_1/actor"
    step.mkdir(parents=True)
    (step / "model.pt").write_bytes(b"x" * 1000)
    (record.checkpoints / LATEST).write_text("1")
    (record.samples / "1.jsonl").write_text("{}\n")
    (record.samples / "validation").mkdir()
    (record.samples / "validation/1.jsonl").write_text("{}\n")
    (record.tensorboard / "events.out.tfevents.1").write_text("x")
    return record


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def test_a_run_and_nothing_beside_it_is_removed(root: Path) -> None:
    other = recorded(root, "demo-2")
    before = sorted(path.relative_to(root) for path in other.folder.rglob("*"))
    removed = remove_run(recorded(root))
    assert removed.size > 1000 and removed.kept == ()
    assert os.listdir(root) == ["demo-2"]
    assert sorted(path.relative_to(root) for path in other.folder.rglob("*")) == before


def test_a_run_that_may_go_on_on_another_host_is_kept_until_it_is_said_to_have_ended(root: Path) -> None:
    record = RunRecord.create(root, "demo", {})
    record.begin_attempt(["driver"], {}, {"hostname": "node7"}, "schema: 1\n")._run_lock.close()
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    for act in (
        remove_run,
        lambda one: stop_run(one, 1.0, print),
        lambda one: stop_run(one, 1.0, print, ended_on="n"),
    ):
        with pytest.raises(NpuRlError, match="may still be active on node7") as caught:
            act(RunRecord.load(root, "demo"))
        assert "runs stop demo --ended-on node7" in str(caught.value.hint)
    with pytest.raises(NpuRlError, match="already exists"):
        RunRecord.create(root, "demo", {})
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    assert stop_run(RunRecord.load(root, "demo"), 1.0, print, ended_on="node7").outcome == "killed"
    remove_run(RunRecord.load(root, "demo"))
    assert os.listdir(root) == []


def test_what_a_person_has_put_there_stays(root: Path, tmp_path: Path) -> None:
    record = recorded(root)
    outside = tmp_path / "disk"
    (outside / "global_step_9").mkdir(parents=True)
    mine = [
        "notes.txt",
        "checkpoints/best",
        "attempts/1/notes.txt",
        "samples/read.md",
        "elsewhere",
        "attempts/x",
    ]
    for name in mine[:-2]:
        (record.folder / name).write_text("mine")
    (record.folder / "elsewhere").symlink_to(outside)
    (record.folder / "attempts/x").mkdir()
    removed = remove_run(record)
    assert sorted(str(path.relative_to(record.folder)) for path in removed.kept) == sorted(mine)
    left = {str(path.relative_to(record.folder)) for path in record.folder.rglob("*") if not path.is_dir()}
    assert left == {*mine[:-2]}
    assert (outside / "global_step_9").is_dir()
    with pytest.raises(NpuRlError, match="Unknown run demo"):
        RunRecord.load(root, "demo")
    with pytest.raises(NpuRlError, match="taken by something that is not a run"):
        RunRecord.create(root, "demo", {})


def test_what_npu_rl_itself_has_left_there_goes(root: Path) -> None:
    """The data.pt of a save that was cut off, renamed by --resume, and files whose writer was killed."""
    record = recorded(root)
    for name in (
        "checkpoints/global_step_1/data.pt.incomplete",
        f"checkpoints/.{LATEST}.0123456789ab",
        "attempts/1/.driver.log.0123456789ab",
        "attempts/1/.nodes.json.4711",
        ".run.json.0123456789ab",
        "rehearsal-end.json",
    ):
        (record.folder / name).write_text("x")
    removed = remove_run(record)
    assert removed.kept == () and os.listdir(root) == []


def test_links_are_not_followed(root: Path, tmp_path: Path) -> None:
    record = recorded(root)
    outside = tmp_path / "disk"
    (outside / "global_step_9").mkdir(parents=True)
    (outside / LATEST).write_text("9")
    (record.tensorboard / "more").symlink_to(outside)
    os.rename(record.checkpoints, tmp_path / "before")
    record.checkpoints.symlink_to(outside)
    removed = remove_run(record)
    assert (
        removed.kept == (record.checkpoints, record.tensorboard / "more") and record.checkpoints.is_symlink()
    )
    assert sorted(os.listdir(outside)) == ["global_step_9", LATEST]


def test_a_run_that_goes_on_is_refused(root: Path, tmp_path: Path) -> None:
    record = recorded(root)
    attempt = record.begin_attempt(["driver"], {}, {}, "schema: 1\n")
    with pytest.raises(NpuRlError, match="Run demo goes on, so it is not removed") as caught:
        remove_run(RunRecord.load(root, "demo"))
    assert "npu-rl runs stop demo" in str(caught.value)
    attempt.close("done", 0)
    with bystander(tmp_path / "left", record.mark), pytest.raises(NpuRlError, match="has left processes"):
        remove_run(RunRecord.load(root, "demo"))
    remove_run(RunRecord.load(root, "demo"))
    assert os.listdir(root) == []


@pytest.mark.parametrize(
    "place", ["{}/checkpoints/global_step_1", "{}/checkpoints", "{}/checkpoints/global_step_1'"]
)
def test_a_run_that_another_resumes_from_is_refused(root: Path, place: str) -> None:
    record = recorded(root)
    recorded(root, "next", recipe=f"overrides:\n  trainer.resume_from_path: {place.format(record.folder)}\n")
    with pytest.raises(NpuRlError, match="because next resumes from its checkpoints") as caught:
        remove_run(record)
    assert "npu-rl runs rm next" in str(caught.value) and (record.folder / "run.json").is_file()
    remove_run(RunRecord.load(root, "next"))
    remove_run(record)
    assert os.listdir(root) == []


@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize("when", [0, 1, 3, 6, 9])
def test_a_removal_that_was_cut_off_can_be_repeated(
    root: Path, monkeypatch: pytest.MonkeyPatch, when: int, foreign: bool
) -> None:
    record = recorded(root)
    if foreign:
        (record.folder / "notes.txt").write_text("mine")
    calls = [0]

    def cut(change: str) -> None:
        original = getattr(os, change)

        def counted(*args: object, **options: object) -> object:
            calls[0] += 1
            if calls[0] > when:
                raise KeyboardInterrupt
            return original(*args, **options)

        patch.setattr(os, change, counted)

    with monkeypatch.context() as patch:
        for change in ("rename", "unlink", "rmdir"):
            cut(change)
        try:
            remove_run(record)
        except KeyboardInterrupt:
            pass
    if (record.folder / "run.json").exists():
        remove_run(RunRecord.load(root, "demo"))
    else:
        remove_run(recorded(root, "other"))  # the next removal, of any run, removes what is left
    left = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
    assert left == (["demo", "demo/notes.txt"] if foreign else [])


@pytest.mark.parametrize(
    "spelled", ["{link}/runs/demo", "{real}/x/../runs/demo", "{real}/runs//demo", "./runs/demo"]
)
def test_a_checkpoint_is_in_use_however_it_is_spelled(tmp_path: Path, spelled: str) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    record = recorded(real / "runs")
    link.symlink_to(real)
    path = spelled.format(link=link, real=real)
    user = recorded(real / "runs", "user", f"model:\n  path: {path}/checkpoints/global_step_1/actor\n")
    facts = {**user.facts, "recipe_path": str(real / "mine.yaml")}
    (user.folder / "run.json").write_text(json.dumps(facts))
    with pytest.raises(NpuRlError, match="user resumes from its checkpoints"):
        remove_run(record)
    assert remove_run(user).kept == ()


@pytest.mark.parametrize("blank", ["my link", "my, {own}: [link]='x'", "a link of a name " * 9])
@pytest.mark.parametrize("where", ["recipe", "command", "list"])
def test_a_checkpoint_is_in_use_through_a_link_whose_name_has_blanks(
    tmp_path: Path, blank: str, where: str
) -> None:
    record, link = recorded(tmp_path / "ws/runs"), tmp_path / blank
    link.symlink_to(tmp_path / "ws")
    path = f"{link}/runs/demo/checkpoints/global_step_1/actor"
    recipe = yaml.safe_dump({"model": {"path": path}}, allow_unicode=True)
    user = recorded(tmp_path / "ws/runs", "user", recipe if where == "recipe" else "schema: 1\n")
    quoted = "'" + path.replace("'", "\\'") + "'"
    value = {"recipe": "/m", "command": f"model.path={quoted}", "list": f"data.files=[{quoted},'/b c']"}[
        where
    ]
    (user.folder / "attempts/1/command.json").write_text(json.dumps({"command": ["python", value]}))
    with pytest.raises(NpuRlError, match="user resumes from its checkpoints"):
        remove_run(record)
    assert remove_run(user).kept == ()


def test_what_a_person_has_put_among_the_trainers_files_stays(root: Path) -> None:
    record = recorded(root)
    mine = [record.tensorboard / "notes.txt", record.checkpoints / "global_step_1/merged/model.safetensors"]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    removed = remove_run(record)
    assert removed.kept == (mine[1].parent, mine[0])
    assert all(path.read_text() == "mine" for path in mine)
    assert not (record.checkpoints / "global_step_1/actor").exists()
