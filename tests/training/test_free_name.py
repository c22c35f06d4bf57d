"""A second `train` of a recipe gets the next free name, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.common.errors import NpuRlError
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe, load_recipe
from npu_rl.training.record.free_name import with_free_name
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.record.saved_checkpoints.checkpoint_folders import LATEST


def named(runs: Path, *overrides: str, recipe: str = "quickstart") -> tuple[LoadedRecipe, list[str]]:
    told: list[str] = []
    return with_free_name(load_recipe(recipe, overrides), runs, told.append), told


def ended(runs: Path, name: str, outcome: str = "done") -> RunRecord:
    record = RunRecord.create(runs, name, {})
    record.begin_attempt(["driver"], {}, {}, "schema: 1\n").end(outcome, 0)
    return record


def test_a_new_run_has_the_recipes_name_or_the_next_one(tmp_path: Path) -> None:
    assert named(tmp_path) == (load_recipe("quickstart"), [])
    record = ended(tmp_path, "quickstart", "stopped")
    loaded, told = named(tmp_path, "steps=9")
    assert loaded.recipe.name == "quickstart-2" and loaded.recipe.steps == 9 and loaded.free_name
    assert loaded.overrides == ("steps=9", "name=quickstart-2")
    assert told == ["A run quickstart exists (stopped), so this run is quickstart-2"]
    loaded, told = named(tmp_path, "name=quickstart")  # which the record refuses
    assert (loaded.recipe.name, loaded.free_name, told) == ("quickstart", False, [])
    (record.checkpoints / "global_step_4").mkdir()
    (record.checkpoints / LATEST).write_text("4")
    (tmp_path / "quickstart-2").write_text("a file of that name")
    loaded, told = named(tmp_path)
    assert loaded.recipe.name == "quickstart-3"
    assert told[0].endswith("; to continue quickstart from step 4 instead: --resume")
    assert "instead" not in named(tmp_path, "steps=4")[1][0]


def test_a_run_that_may_go_on_on_another_host_stays_as_it_is(tmp_path: Path) -> None:
    record = RunRecord.create(tmp_path, "quickstart", {})
    record.begin_attempt(["driver"], {}, {"hostname": "node7"}, "schema: 1\n")._run_lock.close()
    assert named(tmp_path)[1] == [
        "The state of run quickstart is unknown, begun on node7, so this run is quickstart-2"
    ]
    assert RunRecord.load(tmp_path, "quickstart").attempts[0].outcome is None


def test_a_run_that_goes_on_is_joined_by_another_on_a_cpu(tmp_path: Path) -> None:
    attempt = RunRecord.create(tmp_path, "quickstart", {}).begin_attempt(["driver"], {}, {}, "schema: 1\n")
    loaded, told = named(tmp_path)
    assert loaded.recipe.name == "quickstart-2"
    assert told == [
        "Run quickstart is still running, so this run is quickstart-2; both share the cores of this host"
    ]
    attempt.end("done", 0)
    assert named(tmp_path)[1] == ["A run quickstart exists (done), so this run is quickstart-2"]


def test_a_run_that_goes_on_keeps_its_devices(tmp_path: Path) -> None:
    name = "today-gspo-qwen3-30b"
    attempt = RunRecord.create(tmp_path, name, {}).begin_attempt(["driver"], {}, {}, "schema: 1\n")
    with pytest.raises(NpuRlError, match=f"Run {name} is still running") as caught:
        named(tmp_path, recipe=name)
    text = str(caught.value)
    assert f"npu-rl runs stop {tmp_path / name}" in text and "name=" in text
    assert "A second run would use the same devices." in text
    attempt.end("done", 0)
    assert named(tmp_path, recipe=name)[0].recipe.name == f"{name}-2"
