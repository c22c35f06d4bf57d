"""What `--help`, completion and `--json` have of every command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from npu_rl.cli import with_level
from npu_rl.cli.app import app
from npu_rl.data.datasets.known_datasets import DATASETS
from npu_rl.data.datasets.prompt_templates import TEMPLATES
from npu_rl.data.downloads.known_downloads import of_kind
from tests.in_process import run_here
from tests.support import assert_told, clean_env, ok, run_cli

TOP: Any = get_command(app)


def _leaves(group: Any = TOP, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name in group.commands:
        command = group.get_command(None, name)
        if hasattr(command, "commands"):
            yield from _leaves(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


LEAVES = dict(_leaves())


def test_an_example_is_a_command_line() -> None:
    """One of each command at least, which the parser takes as it is."""
    for name, command in LEAVES.items():
        lines = [line.strip() for line in (command.epilog or "").splitlines() if "npu-rl " in line]
        assert lines, name
        for line in lines:
            words = with_level(shlex.split(re.split(r"\s[|>#;]\s?|;", line)[0]))
            assert words[: len(name.split()) + 1] == ["npu-rl", *name.split()]
            context = TOP.make_context("npu-rl", [], resilient_parsing=True)
            found = command.make_context(name, words[len(name.split()) + 1 :], parent=context).params
            assert not any(str(value).startswith("-") for value in found.values()), line


def test_the_help_is_one_screen_with_every_command(tmp_path: Path) -> None:
    lines = ok(run_cli(["--help"], clean_env(tmp_path))).stdout.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 83
    rows = [line.split() for line in lines[4:]]
    sections = [row.pop(0) for row, line in zip(rows, lines[4:], strict=True) if line[0] != " "]
    assert sections == ["start", "run", "patch", "operate"]
    assert [row[0] for row in rows] == list(TOP.commands)


@pytest.mark.parametrize("name", ["", "weights", "plan"])
def test_short_help_option_prints_the_same(tmp_path: Path, name: str) -> None:
    env = clean_env(tmp_path)
    short, full = (run_here([*name.split(), option], env) for option in ("-h", "--help"))
    assert ok(short).stdout == ok(full).stdout != ""


def test_the_bare_program_prints_its_help_and_succeeds(tmp_path: Path) -> None:
    bare, asked = (run_cli(words, clean_env(tmp_path)) for words in ([], ["--help"]))
    assert (bare.returncode, bare.stderr) == (0, "")
    assert bare.stdout == asked.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [(["verfy"], "Did you mean"), (["recipes", "chekc"], "Did you mean"), (["-v"], "Missing command")],
)
def test_a_wrong_command_is_a_usage_error(tmp_path: Path, words: list[str], told: str) -> None:
    assert_told(run_cli(words, clean_env(tmp_path)), told, code=2)


def test_the_choices_of_options_are_those_of_the_code() -> None:
    """They are written once more where options are, since importing the code would cost every command."""
    choices = {
        one.name: set(one.type.choices)
        for one in LEAVES["data prepare"].params
        if hasattr(one.type, "choices")
    }
    assert choices["dataset"] == set(DATASETS) == set(of_kind("dataset"))
    assert choices["template"] == set(TEMPLATES)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_names_the_program(tmp_path: Path, shell: str) -> None:
    env = {**clean_env(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = ok(run_cli(["--show-completion", shell], env))
    assert "_NPU_RL_COMPLETE=complete_" + shell in done.stdout


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("npu-rl ", set(TOP.commands)),
        ("npu-rl recipes c", {"check", "copy"}),
        ("npu-rl plan quick", {"quickstart", "quickstart-today"}),
        ("npu-rl setup --manifest deepseek-v", {"deepseek-v3-cann"}),
        ("npu-rl verify --de", {"--deep"}),
        ("npu-rl data get gs", {"gsm8k"}),
        ("npu-rl train quickstart optimizer.w", {"optimizer.weight_decay=", "optimizer.warmup_steps="}),
        ("npu-rl train quickstart --rehearse l", {"layout"}),
    ],
)
def test_bash_is_offered_what_fits(tmp_path: Path, words: str, offered: set[str]) -> None:
    env = clean_env(tmp_path)
    env.update(_NPU_RL_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(words.count(" ")))
    done = run_cli([], env)
    assert set(done.stdout.split()) == offered, done.stderr
