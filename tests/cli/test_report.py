"""The command `report`: a file, a line or JSON about it, and mistakes that write nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.report.made_run import made_attempt, made_record
from tests.support import assert_told, clean_env, ok, run_cli


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    made_attempt(made_record(tmp_path / "runs"), [1, 2, 3])
    return {**clean_env(tmp_path), "NPU_RL_RUNS": str(tmp_path / "runs")}


def test_it_writes_one_file_and_says_what_is_in_it(tmp_path: Path, env: dict[str, str]) -> None:
    done = ok(run_cli(["report", "demo"], env, cwd=tmp_path))
    assert re.match(rf"{tmp_path}/report.html: demo, done, step 3, [0-9.]+ [kM]B\n", done.stdout)
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_folder_names_a_run_and_json_has_its_figures(tmp_path: Path, env: dict[str, str]) -> None:
    folder = str(tmp_path / "runs" / "demo")
    words = ["report", folder, "-o", "out.html", "--watch", "--json"]
    said = json.loads(ok(run_cli(words, env, cwd=tmp_path)).stdout)
    assert (said["run"], said["steps"], said["alarms"], said["running"]) == ("demo", 3, 0, False)
    assert said["size"] == (tmp_path / "out.html").stat().st_size


@pytest.mark.parametrize(
    ("words", "told", "code"),
    [
        (["none"], "Unknown run none", 1),
        (["demo", "--against", "none"], "Unknown run none", 1),
        (["demo", "-o", "mine.html"], "The output file is not a report", 2),
        (["demo", "-o", "runs"], "The output path is a folder", 2),
        (["demo", "-o", "none/report.html"], "The folder does not exist", 2),
    ],
    ids=["no run", "no other run", "another file", "a folder", "no folder"],
)
def test_mistakes_write_nothing(
    tmp_path: Path, env: dict[str, str], words: list[str], told: str, code: int
) -> None:
    (tmp_path / "mine.html").write_text("mine")
    assert_told(run_cli(["report", *words], env, cwd=tmp_path), told, code=code)
    assert (tmp_path / "mine.html").read_text() == "mine"
    assert not (tmp_path / "report.html").exists()
