"""Two that begin the same recipe at the same moment: each has a run of its own, or the devices are the first's."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from npu_rl.common.errors import NpuRlError
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.training.monitor.screen import PlainScreen
from npu_rl.training.record.free_name import with_free_name
from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.run.prepare import Prepared
from npu_rl.training.run.train import train
from tests.code_trees import lay
from tests.own_trainer import TREE, write_recipe
from tests.training.fake_run import FakeRun
from tests.training.processes import FORKS

PROGRAM = Path(__file__).with_name("own_trainer_program.py")
CONFIG = "training: {train_iters: 9}\n"


def chosen(folder: Path, *overrides: str) -> Prepared:
    """What `npu-rl train` has once the recipe has its name and the workspace was verified."""
    fake = FakeRun(folder, str(folder / "own-recipe.yaml"), PROGRAM)
    loaded = with_free_name(load_recipe(fake.recipe, ["steps=2", *overrides]), fake.runs, print)
    return replace(fake.prepared([]), loaded=loaded)


def train_when_both_are_there(
    folder: Path, overrides: Sequence[str], there: Barrier, said: SimpleQueue[tuple[str, str]]
) -> None:
    shown = io.StringIO()
    try:
        prepared = chosen(folder, *overrides)
        there.wait(30)
        run = train(prepared, PlainScreen(shown))
        said.put((run.record.name, shown.getvalue()))
    except BaseException as error:  # noqa: BLE001  else the test would wait for it
        said.put(("", str(error)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lay(tmp_path / "code", {**TREE, "configs/own.yaml": CONFIG})
    recipe = write_recipe(tmp_path)
    recipe.write_text(recipe.read_text().replace("  log:", '  arguments: [--config, "{config}"]\n  log:'))
    return tmp_path


def both(folder: Path, *overrides: str) -> dict[str, str]:
    said: SimpleQueue[tuple[str, str]] = FORKS.SimpleQueue()
    there = FORKS.Barrier(2)
    racers = [
        FORKS.Process(target=train_when_both_are_there, args=(folder, overrides, there, said)) for _ in "12"
    ]
    for racer in racers:
        racer.start()
    found = dict(said.get() for _ in racers)
    for racer in racers:
        racer.join(30)
    return found


@pytest.mark.second
def test_the_second_gets_the_next_name_and_says_so(folder: Path) -> None:
    found = both(folder)
    assert sorted(found) == ["own", "own-2"]
    assert "so this run is own-2" in found["own-2"] and f"Recorded in {folder}/runs/own-2" in found["own-2"]
    assert "own-2" not in found["own"]
    for name in found:
        (attempt,) = RunRecord.load(folder / "runs", name).attempts
        assert attempt.outcome == "done"
        assert f"name: {name}" in (attempt.folder / "recipe.yaml").read_text()


def test_a_claim_ends_with_the_first_attempt(tmp_path: Path) -> None:
    record = RunRecord.create(tmp_path, "demo", {}, claimed=True)
    seen = RunRecord.load(tmp_path, "demo")
    assert seen.is_locked
    with pytest.raises(NpuRlError, match="Its npu-rl has locked its folder"):
        seen.begin_attempt(["driver"], {}, {}, "schema: 1\n")
    attempt = record.begin_attempt(["driver"], {}, {}, "schema: 1\n")
    assert seen.is_locked
    attempt.end("done", 0)
    assert not seen.is_locked
    record.begin_attempt(["driver"], {}, {}, "schema: 1\n").end("done", 0)
