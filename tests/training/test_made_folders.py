"""What lies beside the runs is used again only where this user has made each of its bytes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from npu_rl.training.run import tiny_model
from npu_rl.training.run.made_folders import keep_made, place_for
from tests.training.fake_run import FakeRun


def test_a_planted_model_is_left_and_another_made(tmp_path: Path) -> None:
    run = FakeRun(tmp_path)
    prepared = run.prepared(["steps=1"], steps=1)
    planted = tiny_model.model_folder(run.runs, prepared.recipe, prepared.interpreter)
    (planted / "model").mkdir(parents=True)
    (planted / "model/config.json").write_text('{"auto_map": {}}')
    _, shown = run.train(["steps=1"], steps=1)
    assert "making the model and the data" in shown
    made = tiny_model.model_folder(run.runs, prepared.recipe, prepared.interpreter)
    assert made.name == f"{planted.name}-2"
    environment = (run.runs / "demo/attempts/1/command.json").read_text()
    assert str(made) in environment and f"{planted}/" not in environment
    assert (planted / "model/config.json").read_text() == '{"auto_map": {}}'
    before = (made / "model/config.json").stat()
    tiny_model.make(made, prepared.recipe, prepared.interpreter, os.environ)
    assert (made / "model/config.json").stat() == before, "it is made once"


def changed(made: Path) -> None:
    (made / "common.pt").write_text("made by npu-RL")


def added(made: Path) -> None:
    (made / "sub/modeling.py").write_text("")


def endless(made: Path) -> None:
    with (made / "common.pt").open("r+b") as file:
        file.truncate(1 << 40)


def a_link(made: Path) -> None:
    (made / "common.pt").rename(made.parent / "elsewhere")
    (made / "common.pt").symlink_to("../elsewhere")


def a_linked_folder(made: Path) -> None:
    (made / "sub").rename(made.parent / "sub")
    (made / "sub").symlink_to("../sub")


def removed(made: Path) -> None:
    (made / "sub/a").unlink()


@pytest.mark.parametrize("change", [changed, added, endless, a_link, a_linked_folder, removed])
def test_one_change_and_it_is_not_used(change: Callable[[Path], None], tmp_path: Path) -> None:
    base = tmp_path / ".made/0123"
    (base / "sub").mkdir(parents=True)
    (base / "sub/a").write_text("a")
    (base / "common.pt").write_text("made by npu-rl")
    keep_made(base, base)
    assert place_for(base) == base
    change(base)
    assert place_for(base) == base.with_name("0123-2")


def test_a_copy_and_another_user_make_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tmp_path / ".made/0123"
    base.mkdir(parents=True)
    keep_made(base, base)
    assert place_for(base) == base
    copy = base.with_name("copy")
    copy.mkdir()
    assert place_for(copy) == base.with_name("copy-2")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    assert place_for(base) == base.with_name("0123-2")
