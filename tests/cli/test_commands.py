"""The command line as a person meets it: start-up, exit codes, what is printed where."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import re
import sys
from dataclasses import dataclass, is_dataclass
from pathlib import Path

import pytest

from npu_rl.cli import with_level
from npu_rl.cli.show import print_json, say_table
from npu_rl.rehearsal.level_names import LEVELS, SETS
from tests.in_process import run_here
from tests.support import ROOT, clean_env, modules_after, ok, run_cli, run_program


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["setup", "--help"], ["recipes", "check", "--help"], ["--version"]],
    ids=" ".join,
)
def test_start_up_imports_nothing_heavy(tmp_path: Path, arguments: list[str]) -> None:
    loaded = modules_after(arguments, clean_env(tmp_path), tmp_path)
    assert "npu_rl.cli.app" in loaded
    heavy = {"git", "pydantic", "yaml", "rich.progress", "unearth", "psutil", "filelock"}
    assert not loaded & {*heavy, "npu_rl.recipes.recipe.load_recipe", "npu_rl.cli.judged"}


def test_version(tmp_path: Path) -> None:
    assert re.fullmatch(r"npu-rl \d+\.\d+\.\d+\n", run_cli(["--version"], clean_env(tmp_path)).stdout)


CHECKPOINT = "Pass the folder of a checkpoint; `npu-rl weights get NAME` prints how to download one."


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["setup"], 2, "--manifest"),
        (["setup", "--manifest", "quickstrat"], 2, "did you mean"),
        (["setup", "--manifest", "./nowhere.yaml"], 1, "no such manifest"),
        (["setup", "--manifest", "quickstart", "--jobs", "0"], 2, "--jobs"),
        (["setup", "--manifest", "quickstart", "--rewrite", "nonsense"], 2, "FROM=TO"),
        (["setup", "--manifest", "quickstart", "--venv", "v"], 2, "--install"),
        (["setup", "--bundle", "none.tar"], 2, "npu-rl bundle create"),
        (["verify"], 3, "no workspace"),
        (["verify", "--workspace", "nowhere"], 3, "is not a workspace"),
        (["verify", "--python", "python3"], 2, "--imports"),
        (["status"], 3, "no workspace"),
        (["diff"], 3, "no workspace"),
        (["summary"], 3, "no workspace"),
        (["requirements"], 3, "no workspace"),
        (["requirements", "--format", "x"], 2, "pylock"),
        (["lock", "--manifest", "quickstart"], 2, "bundled"),
        (["plan", "quickstart", "--disk-gb=nan"], 2, "must be above 0"),
        (["plan", "quickstart", "--storage-gbs=0"], 2, "must be above 0"),
        (["weights", "check", "none"], 2, CHECKPOINT),
        (["weights", "cast", "none", "out"], 2, CHECKPOINT),
        (["weights", "audit", "none", "none"], 2, CHECKPOINT),
        (["weights", "convert", "none", "out", "--format", "hf"], 2, CHECKPOINT),
        (["weights", "convert", ".", "out"], 2, "--layout RECIPE"),
        (["weights", "cast", ".", "out", "--device", "tpu"], 2, "--device"),
        (["weights", "get", "deepseek"], 2, "deepseek-v3-base"),
        (["data", "get", "gsm8k", "--verify"], 2, "npu-rl data get gsm8k"),
        (["data", "get", "gsm8k", "--revision", "main"], 2, "40 characters"),
        (["data", "prepare", "gsm9k", "--input", "a", "--output", "b"], 2, "gsm8k"),
        (["patches", "lint", "verl/0.5.1"], 2, "npu-rl patches lint verl/0.5.0"),
        (["recipes", "copy", "quickstart", "no ne/r.yaml"], 2, "mkdir -p 'no ne'"),
        (["recipes", "show", "quickstrat"], 2, "did you mean 'quickstart'"),
        (["recipes", "show", "./nowhere.yaml"], 1, "can't be read"),
        (["recipes", "show", "quickstart", "optimizer.lr"], 2, "it has no '='"),
        (["recipes", "show", "quickstart", "steps=1", "steps=2"], 2, "given twice"),
        (["recipes", "show", "quickstart", "optimizer.lr=abc"], 2, "optimizer.lr: must be"),
        (["recipes", "check", "quickstart", "--workspace", "nowhere"], 3, "is not a workspace"),
        (["recipes", "copy", "quickstart", "mine"], 2, "is not a valid name for a recipe"),
        (["train", "quickstart", "--rehearse=lay"], 2, "did you mean 'layout'"),
        (["nonsense"], 2, "nonsense"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else "",
)
def test_mistakes_get_their_exit_code_and_the_next_step(
    tmp_path: Path, words: list[str], code: int, told: str
) -> None:
    done = run_here(words, clean_env(tmp_path), tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert told.lower() in " ".join(done.stderr.split()).lower()
    assert "Traceback" not in done.stderr


RESULTS = {
    command.strip("`, "): place
    for commands, place in re.findall(
        r"^\| (`.+?) \| `(npu_rl\.[\w.]+)` \|$", (ROOT / "docs/json.md").read_text(encoding="utf-8"), re.M
    )
    for command in re.findall("`[^`]+`", commands)
}


def fields(command: str) -> set[str]:
    """The fields of the class that docs/json.md names for a command."""
    module, _, name = RESULTS[command].rpartition(".")
    kind = getattr(importlib.import_module(module), name)
    shown = (
        {one.name for one in dataclasses.fields(kind) if one.repr}
        if is_dataclass(kind)
        else set(kind._fields)
    )
    return shown | ({"ok"} if hasattr(kind, "ok") else set())


@pytest.mark.parametrize("command", RESULTS)
def test_the_page_names_the_result_of_a_command(command: str) -> None:
    assert fields(command)


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("manifests list", ""),
        ("manifests show", "quickstart"),
        ("manifests check", "quickstart"),
        ("manifests check", "bad.yaml"),
        ("recipes list", ""),
        ("recipes show", "quickstart"),
        ("recipes check", "quickstart"),
        ("data get", "gsm8k"),
        ("patches list", ""),
        ("store gc", "--dry-run"),
    ],
)
def test_json_has_its_fields(tmp_path: Path, command: str, more: str) -> None:
    (tmp_path / "bad.yaml").write_text("extends: quickstart\nname: -m\ncolour: red\n")
    done = run_here([*command.split(), *more.split(), "--json"], clean_env(tmp_path), tmp_path)
    assert done.returncode == int(more == "bad.yaml") and done.stderr == ""
    found = json.loads(done.stdout)
    assert set(found[0] if isinstance(found, list) else found) == fields(command)


def test_a_manifests_findings_have_their_line(tmp_path: Path) -> None:
    place = tmp_path / "m.yaml"
    place.write_text("schema: 1\nname: m\ntitle: A test\nextends: quickstart\nenv:\n  NPU_RL_SEED: 1\n")
    done = run_here(["manifests", "check", str(place), "--json"], clean_env(tmp_path))
    (error,) = json.loads(done.stdout)["errors"]
    assert done.returncode == 1 and "m.yaml:6: env.NPU_RL_SEED" in error


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (["train", "r", "--rehearse"], ["train", "r", "--rehearse=all"]),
        (["train", "--rehearse", "r"], ["train", "--rehearse=all", "r"]),
        (["train", "r", "--rehearse", "a=1"], ["train", "r", "--rehearse=all", "a=1"]),
        (["train", "r", "--rehearse=layout", "--json"], ["train", "r", "--rehearse=layout", "--json"]),
        *(
            (["train", "r", "--rehearse", one], ["train", "r", f"--rehearse={one}"])
            for one in (*LEVELS, *SETS)
        ),
        ([], []),
    ],
)
def test_a_level_of_rehearsal_may_be_left_out(words: list[str], read: list[str]) -> None:
    assert with_level(words) == read


# -- what is printed ----------------------------------------------------------------------------------


def test_messages_of_parallel_fetches_are_whole_lines(tmp_path: Path) -> None:
    """Each in one write: `print` writes the end of a line by itself, and another's text came before it."""
    code = (
        "import sys, threading\n"
        "from npu_rl.cli.progress import Fetches\n"
        "sys.setswitchinterval(1e-6)\n"
        "watcher = Fetches()\n"
        "def fetch(name):\n"
        "    for number in range(300): watcher.note(name, str(number))\n"
        "threads = [threading.Thread(target=fetch, args=(f'c{i}',)) for i in range(8)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
    )
    done = ok(run_program([sys.executable, "-u", "-c", code], env=clean_env(tmp_path)))
    lines = done.stderr.splitlines()
    assert len(lines) == 8 * 300
    assert all(re.fullmatch(r"c[0-7]: [0-9]+", line) for line in lines)


@pytest.mark.parametrize("kind", ["Fetches", "Weights", "FilesRead"])
def test_bars_on_a_terminal_leave_the_lines(tmp_path: Path, kind: str) -> None:
    use = {
        "Fetches": "bars.begin('verl', 'u'); bars.advance('verl', '[1 MB]', 0.5); bars.end('verl', 2**20)",
        "Weights": "bars.begin(10**9, 0); bars.advance(10**8); bars.shard('a', 1, 2); bars.advance(10**8)",
        "FilesRead": "bars._next = 0; bars(1, 2); bars(2, 2)",
    }[kind]
    given = "'casting'" if kind == "Weights" else ""
    code = f"from npu_rl.cli.progress import {kind}\nwith {kind}({given}) as bars: {use}\nprint('end')"
    shell = "import pty, sys; pty.spawn([sys.executable, '-c', sys.argv[1]])"
    done = ok(run_program([sys.executable, "-c", shell, code], env={**clean_env(tmp_path), "TERM": "xterm"}))
    shown = {"Fetches": "[1 MB]", "Weights": "0.2 GB, 1 of 2 files", "FilesRead": "2 of 2"}[kind]
    assert shown in done.stdout and "Traceback" not in done.stdout
    assert done.stdout.splitlines()[-1].endswith("end")
    assert kind != "Fetches" or "verl: fetching from u" in done.stdout


@dataclass
class _Result:
    place: Path
    figures: list[float]


def test_a_result_with_nan_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": _Result(Path("/x"), [math.nan, 1.5]), "c": math.inf, "big": 10**400, "text": "NaN"})

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is not JSON")

    assert json.loads(capsys.readouterr().out, parse_constant=refuse) == {
        "a": {"place": "/x", "figures": [None, 1.5]},
        "c": None,
        "big": 10**400,
        "text": "NaN",
    }


def test_a_table_in_a_pipe_has_a_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    say_table(("run", "note"), [("r" * 200, "a\x1b[31m"), ("s", "b" * 200)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and "\x1b" not in lines[1]
