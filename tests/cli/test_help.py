"""What `--help` says of every command: a summary in six words, and examples that are command lines."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from npu_rl.cli import _with_level
from npu_rl.cli.app import app
from tests.in_process import run_here
from tests.support import assert_told, clean_env, ok, run_cli

TOP: Any = get_command(app)
GROUPS = ("runs", "weights", "manifests", "recipes", "data", "patches", "bundle", "store")


def _leaves(group: Any = TOP, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name in group.commands:
        command = group.get_command(None, name)
        if hasattr(command, "commands"):
            yield from _leaves(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


LEAVES = dict(_leaves())
EXAMPLES = [
    (name, line.strip())
    for name, command in [
        ("", TOP),
        *((name, TOP.get_command(None, name)) for name in GROUPS),
        *LEAVES.items(),
    ]
    for line in command.epilog.partition("\n\n")[0].splitlines()[2:]
]


def parsed(line: str) -> tuple[Any, dict[str, Any]]:
    """The command that a line of a shell runs, up to a pipe or comment, and its parameters."""
    words = shlex.split(re.split(r"\s[|>#]\s?", line)[0])
    assert words.pop(0) == "npu-rl"
    words = _with_level(words)
    command = TOP
    context = TOP.make_context("npu-rl", words[:0], resilient_parsing=True)
    while hasattr(command, "commands"):
        name = words.pop(0)
        command = command.get_command(None, name)
    return command, command.make_context(command.name, words, parent=context).params


@pytest.mark.parametrize("name", [*GROUPS, *LEAVES])
def test_a_summary_has_six_words_at_most(name: str) -> None:
    command = TOP
    for word in name.split():
        command = command.get_command(None, word)
    summary = command.help.partition("\n\n")[0]
    assert summary.endswith(".") and "\n" not in summary
    assert len(summary.split()) <= 6, summary
    assert command.get_short_help_str(60) == summary


@pytest.mark.parametrize("name", LEAVES)
def test_a_command_has_three_examples_of_its_own(name: str) -> None:
    lines = [line for leaf, line in EXAMPLES if leaf == name]
    assert len(lines) == 3
    assert all(re.match(rf"npu-rl {name}(\s|$)", line) for line in lines), lines


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_has_three_examples(name: str) -> None:
    lines = [line for shown, line in EXAMPLES if shown == name]
    assert len(lines) == len(set(lines)) == 3
    assert any(re.match(rf"npu-rl {name} ", line) for line in lines), lines


@pytest.mark.parametrize("line", [line for _, line in EXAMPLES])
def test_an_example_is_a_command_line(line: str) -> None:
    command, parameters = parsed(line)
    assert command in LEAVES.values()
    assert not any(str(value).startswith("-") for value in parameters.values())


def test_invalid_example_is_rejected_by_the_parser() -> None:
    with pytest.raises(Exception, match="No such option"):
        parsed("npu-rl verify --depe")
    with pytest.raises(Exception, match="Missing"):
        parsed("npu-rl lock --check")


@pytest.mark.parametrize("name", LEAVES)
def test_a_metavar_says_what_it_is(name: str) -> None:
    for parameter in LEAVES[name].params:
        assert parameter.metavar is None or len(parameter.metavar) > 1 or parameter.metavar == "N"


def test_an_option_has_one_description() -> None:
    seen: dict[str, set[str]] = {}
    for command in LEAVES.values():
        for parameter in command.params:
            for option in parameter.opts:
                seen.setdefault(option, set()).add(parameter.help)
    several = {option for option, helps in seen.items() if len(helps) > 1}
    # --dry-run writes nothing, in each command's own way; --output is a file of `lock` and a folder of `data`;
    # --recipe is an older spelling's flag, too; --to, --verify and --python of `patches port` are about a version,
    # and so is --python of `bundle create`;
    # --format is one of checkpoints, and of lists of packages; --step is of a checkpoint, and of samples;
    # --against is a manifest of patches, and a run of a report; --wheels and FILE are of a host, and of a bundle;
    # --workspace is by default one around the current folder, but for `setup`, which would make it there.
    allowed = {
        "--against",
        "--dry-run",
        "--format",
        "--output",
        "-o",
        "--recipe",
        "--step",
        "--to",
        "--verify",
        "--wheels",
        "--workspace",
        "-w",
        "file",
        "--python",
    }
    assert several <= allowed, {option: seen[option] for option in several}


def test_the_exit_codes_stand_in_the_top_help(tmp_path: Path) -> None:
    said = run_cli(["--help"], clean_env(tmp_path)).stdout.partition("Exit codes:")[2]
    assert re.findall(r"^ {4}([\d, ]+)  \w", said, re.MULTILINE) == ["0", "1", "2", "3", "129, 130, 143"]


@pytest.mark.parametrize("name", ["", *GROUPS, *LEAVES])
def test_help_fits_80_columns(tmp_path: Path, name: str) -> None:
    done = ok(run_here([*name.split(), "--help"], {**clean_env(tmp_path), "COLUMNS": "80"}))
    assert "Usage:" in done.stdout
    assert [line for line in done.stdout.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("name", ["", "weights", "weights cast", "plan"])
def test_short_help_option_prints_the_same(tmp_path: Path, name: str) -> None:
    env = clean_env(tmp_path)
    short, full = (run_here([*name.split(), option], env) for option in ("-h", "--help"))
    assert ok(short).stdout == ok(full).stdout


def test_the_bare_program_prints_its_help_and_succeeds(tmp_path: Path) -> None:
    bare, asked = (run_cli(words, clean_env(tmp_path)) for words in ([], ["--help"]))
    assert (bare.returncode, bare.stderr) == (0, "")
    assert bare.stdout == asked.stdout


FRAGMENT = re.compile(r"^(?:Also|And|Or|With|Of|As|Against|Through|By|Those|What|Its own) ")


@pytest.mark.parametrize("name", LEAVES)
def test_the_text_of_a_command_is_sentences(name: str) -> None:
    """The paragraph below the summary stands alone: it neither continues the summary nor lists nouns."""
    _, _, body = LEAVES[name].help.partition("\n\n")
    if not body:
        return
    assert body.rstrip().endswith(".")
    assert not FRAGMENT.match(body), body


def test_the_help_of_an_option_stands_alone() -> None:
    helps = {(name, one.name): one.help for name, command in LEAVES.items() for one in command.params}
    starts = re.compile(r"(?:Such|Where|Which|Also|And|Or|Of|One|Whether it) ")
    assert {place: text for place, text in helps.items() if starts.match(text)} == {}


def test_the_groups_have_the_same_verbs() -> None:
    verbs = {name: set(TOP.get_command(None, name).commands) for name in ("manifests", "recipes", "patches")}
    assert set.intersection(*verbs.values()) == {"list", "show"}
    assert verbs["manifests"] - {"diff"} < verbs["recipes"] == {"list", "show", "check", "copy", "schema"}


@pytest.mark.parametrize(
    ("older", "now"),
    [
        (["list"], ["manifests", "list"]),
        (["list", "--json"], ["manifests", "list", "--json"]),
        (["list", "--patches", "--json"], ["patches", "list", "--json"]),
        (["schema"], ["manifests", "schema"]),
        (["schema", "--recipe"], ["recipes", "schema"]),
    ],
)
def test_an_older_spelling_does_the_same(tmp_path: Path, older: list[str], now: list[str]) -> None:
    env = clean_env(tmp_path)
    one, other = run_cli(older, env), run_cli(now, env)
    assert one.returncode == other.returncode == 0
    assert one.stdout == other.stdout != ""


@pytest.mark.parametrize("wrong", [["verfy"], ["recipes", "chekc"]])
def test_a_command_that_is_none_gets_the_one_that_was_meant(tmp_path: Path, wrong: list[str]) -> None:
    assert_told(run_cli(wrong, clean_env(tmp_path)), "Did you mean", code=2)


def test_verbose_without_a_command_is_a_usage_error(tmp_path: Path) -> None:
    assert_told(run_cli(["-v"], clean_env(tmp_path)), "Missing command", code=2)


# -- groups --------------------------------------------------------------------------------------------


def test_manifests_show_has_the_stack(tmp_path: Path) -> None:
    done = run_cli(["manifests", "show", "quickstart"], clean_env(tmp_path))
    assert "verl==0.5.0" in done.stdout and "patch 0001-hf-rollout-repeats-once: 2 hunks" in done.stdout


def test_manifests_check_names_the_line(tmp_path: Path) -> None:
    place = tmp_path / "m.yaml"
    place.write_text(
        "schema: 1\nname: m\ntitle: A test\ndevice: npu\nextends: quickstart\nenv:\n  NPU_RL_SEED: 1\n"
    )
    done = run_cli(["manifests", "check", str(place)], clean_env(tmp_path))
    assert done.returncode == 1
    assert "m.yaml:7: env.NPU_RL_SEED" in done.stdout
    assert "1 error" in done.stdout.splitlines()[-1]


def test_manifests_check_lists_what_is_invalid_for_programs_too(tmp_path: Path) -> None:
    place = tmp_path / "m.yaml"
    place.write_text("extends: quickstart\nname: -m\ncolour: red\n")
    done = run_cli(["manifests", "check", str(place), "--json"], clean_env(tmp_path))
    assert done.returncode == 1 and done.stderr == ""
    said = json.loads(done.stdout)
    assert list(said) == ["ok", "manifest", "path", "errors", "notes"] and said["ok"] is False
    assert [line.partition(" ")[0] for line in said["errors"]] == [f"{place}:2:", f"{place}:3:"]


def test_patches_show_prints_the_file(tmp_path: Path) -> None:
    from npu_rl.common.bundled import data_root

    (file,) = (data_root() / "patchsets").rglob("0001-attention-scale.patch")
    for name in ("0001-attention-scale", "0001-attention-scale.patch", "attention-scale"):
        assert run_cli(["patches", "show", name], clean_env(tmp_path)).stdout == file.read_text()
    assert_told(run_cli(["patches", "show", "attention-scael"], clean_env(tmp_path)), "attention-scale")


# -- completion ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_names_the_program(tmp_path: Path, shell: str) -> None:
    env = {**clean_env(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = ok(run_cli(["--show-completion", shell], env))
    assert "_NPU_RL_COMPLETE=complete_" + shell in done.stdout


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("npu-rl ", {"setup", "verify", "plan", "train", "recipes"}),
        ("npu-rl recipes c", {"check", "copy"}),
        ("npu-rl plan quick", {"quickstart"}),
        ("npu-rl setup --manifest deepseek-v", {"deepseek-v3-cann"}),
        ("npu-rl patches show 0001-attention", {"0001-attention-scale"}),
        ("npu-rl verify --de", {"--deep"}),
        ("npu-rl train quickstart optimizer.w", {"optimizer.weight_decay=", "optimizer.warmup_steps="}),
        ("npu-rl plan quickstart rollout.tensor_par", {"rollout.tensor_parallel="}),
        ("npu-rl train quickstart --rehearse l", {"layout"}),
    ],
)
def test_bash_is_offered_what_fits(tmp_path: Path, words: str, offered: set[str]) -> None:
    env = clean_env(tmp_path)
    env.update(_NPU_RL_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(words.count(" ")))
    done = run_cli([], env)
    said = set(done.stdout.split())
    assert offered <= said, done.stderr
    assert words.endswith(" ") or offered == said
    assert not said & {"list", "schema"}
