"""`npu-rl recipes` as a person meets it: list, show, copy and check, and the schema of recipes."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from npu_rl.recipes.recipe.load_recipe import load_recipe
from tests.config.documents import write
from tests.recipes.examples import MINIMAL
from tests.support import clean_env, ok, run_cli


@pytest.fixture
def npu_rl(tmp_path: Path):  # type: ignore[no-untyped-def]
    here = tmp_path / "here"
    here.mkdir()

    def run(*args: str) -> CompletedProcess[str]:
        return run_cli(args, clean_env(tmp_path), here)

    run.here = here  # type: ignore[attr-defined]
    return run


def test_show_as_json(npu_rl) -> None:  # type: ignore[no-untyped-def]
    shown = json.loads(npu_rl("recipes", "show", "quickstart", "steps=5", "--json").stdout)
    assert shown["recipe"]["steps"] == 5 and shown["recipe"]["optimizer"]["lr"] == 0.003
    assert shown["recipe"]["schema"] == 1 and shown["recipe"]["logging"]["samples"] is True
    assert shown["where"]["steps"] == "command line: steps=5"
    assert shown["bundled"] is True and list(shown["files"]) == ["bundled:quickstart.yaml"]
    assert shown["digest"] == load_recipe("quickstart", ["steps=5"]).digest


def test_check_lists_the_paths_that_are_not_on_this_machine(npu_rl) -> None:  # type: ignore[no-untyped-def]
    arguments = ("recipes", "check", "deepseek-r1-zero-256die", "model.path=/nowhere/m")
    lines = ok(npu_rl(*arguments)).stdout.splitlines()
    at = lines.index("Not on this machine, so not checked:")
    assert lines[at + 1] == "  model.path: '/nowhere/m'"
    assert lines[at + 4] == "  data.test[0]: '~/verl/data/deepscaler/test.parquet'"
    assert lines[-1].startswith("deepseek-r1-zero-256die: no error, ")
    unchecked = json.loads(npu_rl(*arguments, "--json").stdout)["unchecked"]
    assert unchecked["model.path"] == "/nowhere/m is not on this machine"
    assert list(unchecked) == ["model.path", "model.checkpoint", "data.train[0]", "data.test[0]"]


def test_check_reports_faults_of_the_recipe_itself_first(npu_rl) -> None:  # type: ignore[no-untyped-def]
    write(npu_rl.here / "r.yaml", MINIMAL.replace("device: cpu", "device: gpu"))
    done = npu_rl("recipes", "check", "r.yaml", "steps=x")
    assert done.returncode == 1 and done.stdout == ""
    assert "r.yaml is not a valid recipe: 2 errors" in done.stderr
    as_json = npu_rl("recipes", "check", "r.yaml", "steps=x", "--json")
    assert as_json.returncode == 1 and as_json.stderr == ""
    found = json.loads(as_json.stdout)
    assert [(error["key"], error["where"]) for error in found["findings"]] == [
        ("device", "r.yaml:5"), ("steps", "command line: steps=x"),
    ]  # fmt: skip
