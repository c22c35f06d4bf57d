"""A code folder of unknown origin: a recipe is checked against it without waiting, and without a traceback."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.code_trees import LIBRARIES, VERL, WITH_MINDSPEED, check_recipe, lay, megatron, recipe


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return lay(tmp_path / "tree", VERL, LIBRARIES, WITH_MINDSPEED)


def large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "plant",
    [os.mkfifo, os.mkdir, *(partial(os.symlink, target) for target in ("nowhere", "/dev/zero")), large],
    ids=["pipe", "folder", "broken link", "device", "large"],
)
def test_any_file_may_be_anything(tree: Path, tmp_path: Path, plant: Callable[[Path], None]) -> None:
    def late(_number: int, _frame: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    try:
        for path in sorted(p for p in tree.rglob("*") if p.is_file()):
            code = tmp_path / "code"
            shutil.copytree(tree, code)
            (code / path.relative_to(tree)).unlink()
            plant(code / path.relative_to(tree))
            signal.alarm(20)
            for loaded in (recipe(), megatron()):
                for found in check_recipe(loaded, code).errors:
                    assert found.message and found.where
            signal.alarm(0)
            shutil.rmtree(code)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
