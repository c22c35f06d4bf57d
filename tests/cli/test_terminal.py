"""On a terminal: colour, unless the user refuses it, and lists as wide as it is. In a pipe: neither."""

from __future__ import annotations

import io
import os
import pty
import re
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from npu_rl.cli.app import app
from npu_rl.cli.command_group import HIDDEN
from npu_rl.cli.show import _too_wide
from npu_rl.cli.terminal_lines import _NAMES, coloured, fold_long_lines
from tests.in_process import run_here
from tests.support import clean_env, run_program

_SGR = re.compile(r"\x1b\[[0-9;]*m")


def on_a_terminal(words: list[str], env: dict[str, str], folder: Path, columns: int = 80) -> str:
    """What a command prints on a terminal of its own, both streams, with escape sequences."""
    env = {**env, "TERM": "xterm", "COLUMNS": str(columns)}
    run = "import pty, sys; pty.spawn([sys.executable, '-m', 'npu_rl', *sys.argv[1:]])"
    return run_program([sys.executable, "-c", run, *words], env=env, cwd=folder).stdout.replace("\r\n", "\n")


def test_an_error_has_colour_on_a_terminal_alone(tmp_path: Path) -> None:
    env = clean_env(tmp_path)
    words = ["recipes", "check", "quickstart", "steps=a"]
    shown = on_a_terminal(words, env, tmp_path)
    assert "\x1b[1;31mnpu-rl:\x1b[0m Invalid argument 'steps=a'\n" in shown
    assert "  \x1b[1mwhere:\x1b[0m the command line\n" in shown
    plain = run_program([sys.executable, "-m", "npu_rl", *words], env=env, cwd=tmp_path).stderr
    assert _SGR.sub("", shown) == plain


@pytest.mark.parametrize("words", [["recipes", "list"], ["manifests", "list"]], ids=" ".join)
def test_a_list_fits_80_columns_and_is_one_line_an_entry_in_a_pipe(tmp_path: Path, words: list[str]) -> None:
    env = clean_env(tmp_path)
    shown = on_a_terminal(words, env, tmp_path).splitlines()
    assert shown and max(map(len, shown)) <= 80
    piped = run_here(words, env).stdout
    assert " ".join(piped.replace(":", "").split()) == " ".join(" ".join(shown).replace(":", "").split())
    assert len(piped.splitlines()) < len(shown)


def test_the_patches_fit_80_columns_with_their_versions(tmp_path: Path) -> None:
    shown = on_a_terminal(["patches", "list"], clean_env(tmp_path), tmp_path).splitlines()
    assert shown and max(map(len, shown)) <= 80
    at = shown.index("  hf-rollout-repeats-once")
    entry = " ".join(" ".join(shown[at + 1 : at + 6]).split())
    assert "present in 0.5.0" in entry


def test_a_long_reason_is_folded_and_a_command_is_not(tmp_path: Path) -> None:
    words = ["recipes", "check", "quickstart", "rollout.zzzzzz=1"]
    lines = on_a_terminal(words, clean_env(tmp_path), tmp_path).splitlines()
    assert max(len(_SGR.sub("", line)) for line in lines) <= 80
    words = ["verify", "-w", f"{tmp_path}/{'long-' * 20}name"]
    shown = on_a_terminal(words, clean_env(tmp_path), tmp_path)
    assert re.search(r"npu-rl setup --manifest NAME --workspace \S+name\n", shown)


def test_a_misspelt_variable_of_ours_is_noted(tmp_path: Path) -> None:
    done = run_here(["recipes", "show", "quickstart"], {**clean_env(tmp_path), "NPU_RL_STOER": "/x"})
    assert (done.returncode, done.stderr) == (
        0,
        "note: nothing reads NPU_RL_STOER; did you mean NPU_RL_STORE?\n",
    )


@pytest.mark.parametrize(
    "words",
    [
        ["manifests", "show", "deepseek-r1-zero"],
        ["plan", "quickstart", "data.batch=7"],
        ["doctor", "--manifest", "quickstart"],
    ],
    ids=" ".join,
)
def test_a_report_fits_80_columns(tmp_path: Path, words: list[str]) -> None:
    """But for what is one word, such as a digest or an address, and for commands to copy."""
    shown = _SGR.sub("", on_a_terminal(words, clean_env(tmp_path), tmp_path)).splitlines()
    wide = [line for line in shown if len(line) > 80 and not re.search("npu-rl |pip ", line)]
    assert [line for line in wide if max(map(len, line.split())) < 60] == []
    assert len(shown) > 5


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "  fix:   one two three four five six seven",
            "  fix:   one two three four\n         five six seven",
        ),
        ("  where: one two three four five six", "  where: one two three four\n         five six"),
        ("error[x] one two three four five six", "error[x] one two three four\n  five six"),
        ("    one two three four five six seven", "    one two three four five\n      six seven"),
        ("one  " + "x" * 40 + " two", "one\n     " + "x" * 40 + "\n     two"),
        ("next: npu-rl setup --manifest quickstart", "next: npu-rl setup --manifest quickstart"),
        (
            "  next:  Rehearse it: npu-rl train quickstart --rehearse",
            "  next:  Rehearse it:\n         npu-rl train quickstart --rehearse",
        ),
        (
            "  fix:   `npu-rl recipes list` prints names",
            "  fix:   `npu-rl recipes list`\n         prints names",
        ),
        (
            "Next: npu-rl verify -w /home/you; source /home/you/activate",
            "Next: npu-rl verify -w /home/you;\n      source /home/you/activate",
        ),
        (
            "      npu-rl diff -w /home/you   # shows all of them",
            "      npu-rl diff -w /home/you\n        # shows all of them",
        ),
        ("      npu-rl diff -w /home/you/workspace", "      npu-rl diff -w /home/you/workspace"),
        ("npu-rl reads what git and pip can't find", "npu-rl reads what git and pip\n  can't find"),
        (
            "Next: npu-rl diff -w /home/you   # shows them",
            "Next: npu-rl diff -w /home/you\n      # shows them",
        ),
    ],
)
def test_a_long_line_is_folded_below_its_text(
    line: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    assert fold_long_lines(f"short\n{line}\n", _Terminal()) == f"short\n{expected}\n"
    assert fold_long_lines(line, _Terminal()) == expected
    assert fold_long_lines(line, io.StringIO()) == line


def test_a_terminal_without_a_width_gets_the_lines_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a pseudo-terminal whose size nobody has set, with COLUMNS=0 or unset."""
    monkeypatch.delenv("COLUMNS", raising=False)
    size = os.terminal_size((0, 24))
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_: size)
    assert fold_long_lines("one two three " * 9, _Terminal()) == "one two three " * 9


def test_every_command_of_ours_is_copied_whole() -> None:
    table = get_command(app).table  # type: ignore[attr-defined]
    assert set(_NAMES.split("|")) == {name for name, place in table.items() if not place.startswith(HIDDEN)}


def test_a_base_is_listed_before_its_variants(tmp_path: Path) -> None:
    lines = run_here(["recipes", "list"], clean_env(tmp_path)).stdout.splitlines()
    names = [line.split()[0] for line in lines]
    assert names == sorted(names)
    assert names.index("deepseek-r1-zero-256die") < names.index("deepseek-r1-zero-256die-published")


@pytest.mark.parametrize(
    ("width", "left_out"),
    [
        (98, ()),
        (97, ("tree",)),
        (84, ("tree",)),
        (83, ("recipe",)),
        (65, ("tree", "recipe")),
        (20, ("tree", "recipe")),
    ],
)
def test_a_narrow_terminal_gets_a_table_without_the_columns_least_needed(
    width: int, left_out: tuple[str, ...]
) -> None:
    """Two columns are between neighbours. Where it is too narrow all the same, cells are folded."""
    heads, row = ("run", "recipe", "tree", "note"), ("r" * 30, "c" * 30, "t" * 12, "n" * 20)
    assert _too_wide(heads, [row], ("tree", "recipe"), width) == left_out


@pytest.mark.parametrize("variable", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_the_user_can_refuse_colour(variable: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    try:
        with os.fdopen(theirs, "w") as terminal:
            assert coloured("error: x\n", terminal) == "\x1b[1;31merror:\x1b[0m x\n"
            for name, value in variable.items():
                monkeypatch.setenv(name, value)
            assert coloured("error: x\n", terminal) == "error: x\n"
    finally:
        os.close(ours)
