"""The command line as a person meets it: help, start-up, exit codes, what is printed where."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from npu_rl.common.bundled import data_root
from tests.support import clean_env, modules_after, ok, run_cli, run_program

COMMANDS = (
    "setup",
    "verify",
    "plan",
    "doctor",
    "train",
    "runs",
    "report",
    "status",
    "diff",
    "summary",
    "faults",
    "lock",
    "weights",
    "requirements",
    "manifests",
    "recipes",
    "data",
    "patches",
    "bundle",
    "store",
)


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--help"], ["setup", "--help"], ["train", "--help"], ["recipes", "--help"]),
        *(["recipes", "check", "--help"], ["--version"], ["list"], ["manifests", "list"]),
    ],
    ids=" ".join,
)
def test_start_up_imports_nothing_heavy(tmp_path: Path, arguments: list[str]) -> None:
    loaded = modules_after(arguments, clean_env(tmp_path), tmp_path)
    assert "npu_rl.cli.app" in loaded
    heavy = {"git", "pydantic", "yaml", "unearth", "psutil", "filelock"}
    assert not loaded & {*heavy, "npu_rl.recipes.recipe.load_recipe", "npu_rl.cli.judged"}


def test_help_names_every_command(tmp_path: Path) -> None:
    done = ok(run_cli(["--help"], clean_env(tmp_path)))
    listed = done.stdout.partition("Commands:\n")[2].partition("\n\n")[0]
    assert tuple(line.split()[0] for line in listed.splitlines()) == COMMANDS


def test_version(tmp_path: Path) -> None:
    assert re.fullmatch(r"npu-rl \d+\.\d+\.\d+\n", run_cli(["--version"], clean_env(tmp_path)).stdout)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["setup"], 2, "--manifest"),
        (["setup", "--manifest", "quickstrat"], 2, "did you mean"),
        (["setup", "--manifest", "./nowhere.yaml"], 1, "no such manifest"),
        (["setup", "--manifest", "quickstart", "--jobs", "0"], 2, "--jobs"),
        (["setup", "--manifest", "quickstart", "--rewrite", "nonsense"], 2, "FROM=TO"),
        (["verify"], 3, "no workspace"),
        (["verify", "--workspace", "nowhere"], 3, "is not a workspace"),
        (["status"], 3, "no workspace"),
        (["diff"], 3, "no workspace"),
        (["summary"], 3, "no workspace"),
        (["requirements"], 3, "no workspace"),
        (["lock", "--manifest", "quickstart"], 2, "bundled"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_mistakes_get_their_exit_code_and_a_clear_message(
    tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    done = run_cli(arguments, clean_env(tmp_path), tmp_path)
    assert done.returncode == code
    assert message.lower() in done.stderr.lower()
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_list_as_json_has_the_bundled_manifests(tmp_path: Path) -> None:
    rows = json.loads(run_cli(["list", "--json"], clean_env(tmp_path)).stdout)
    assert {"quickstart", "deepseek-v3-cann"} <= {row["name"] for row in rows}
    assert all(re.fullmatch(r"[0-9a-f]{40}", row["tree"]) for row in rows)


def test_show_has_the_versions_of_the_host(tmp_path: Path) -> None:
    env = clean_env(tmp_path)
    lines = run_cli(["manifests", "show", "deepseek-v3-cann"], env).stdout.splitlines()
    told = dict(line.split(maxsplit=2)[1:] for line in lines if line.startswith("  host "))
    assert told["driver"] == "25.2.0" and told["torch"] == "2.5.1"
    assert (
        json.loads(run_cli(["manifests", "show", "deepseek-v3-cann", "--json"], env).stdout)["host"] == told
    )


@pytest.mark.parametrize("kind", ["manifest", "recipe"])
def test_schema_prints_the_committed_schema(tmp_path: Path, kind: str) -> None:
    done = ok(run_cli([f"{kind}s", "schema"], clean_env(tmp_path)))
    assert done.stdout == (data_root() / f"{kind}s" / f"{kind}.schema.json").read_text(encoding="utf-8")


def test_a_closed_pipe_is_no_crash(tmp_path: Path) -> None:
    env = clean_env(tmp_path)
    done = run_program(["bash", "-c", f"{sys.executable} -m npu_rl schema | head -n 1"], env=env)
    assert done.stdout.startswith("{")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (["train", "r", "--rehearse"], ["train", "r", "--rehearse=all"]),
        (["train", "--rehearse", "r"], ["train", "--rehearse=all", "r"]),
        (["train", "r", "--rehearse", "a=1"], ["train", "r", "--rehearse=all", "a=1"]),
        (["train", "r", "--rehearse", "imports"], ["train", "r", "--rehearse", "imports"]),
        (["train", "r", "--rehearse=layout", "--json"], ["train", "r", "--rehearse=layout", "--json"]),
        ([], []),
    ],
)
def test_a_level_of_rehearsal_may_be_left_out(words: list[str], read: list[str]) -> None:
    from npu_rl.cli import _with_level

    assert _with_level(words) == read


def test_every_level_may_be_written_after_a_space() -> None:
    """The command line has a list of its own, since importing the levels would cost every command."""
    from npu_rl.cli import _with_level
    from npu_rl.rehearsal.level_names import LEVELS, SETS

    for level in (*LEVELS, *SETS):
        assert _with_level(["train", "x", "--rehearse", level]) == ["train", "x", "--rehearse", level]
