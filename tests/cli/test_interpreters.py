"""Which program a command starts: every command runs on a workspace whose receipt names another interpreter."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import typer

from npu_rl.cli import app
from npu_rl.cli.command_group import LazyGroup
from npu_rl.common.errors import NpuRlError
from npu_rl.recipes.judgement import trainer_probe
from npu_rl.workspace.folder import chosen_interpreter
from npu_rl.workspace.folder.receipt import read_receipt
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from tests import hydra_in_process
from tests.browse.recorded import run, write_samples
from tests.own_trainer import TREE, write_recipe
from tests.support import ROOT, Repo, clean_env, script
from tests.workspace.stack import receipt_with

CODE = {
    **TREE,
    "configs/own.yaml": TREE["configs/own.yaml"].replace("shuffle_minibatch", "shuffle_mini_batch"),
    "configs/datasets/deepscaler.yaml": "prompt_type: empty\n",
    "cli/preprocess_data.py": "",
}
MANIFEST = """\
schema: 1
name: own
title: a trainer with keys of its own
device: cpu
components:
  own:
    sources: [{{git: "{url}"}}]
    ref: refs/heads/main
    checkout: full
    build: [{{run: ["{{python}}", build.py], products: [built.txt]}}]
    take: [{{from: own, to: own}}, {{from: configs, to: configs}}, {{from: cli, to: cli}}]
"""
PAGE = ROOT / "docs" / "trust.md"

# {w}: the workspace. {m}: its manifest. {r}: a recipe for it, validated by the tree's own function. {d}: prepared data.
# {t}: a tokenizer. {g}: downloaded rows. {o}: a new path. Runs shown and gone have records.
STARTS: Mapping[str, Sequence[str]] = {
    "train": (
        "train {r} -w {w} overrides.actor.load={d} overrides.training.data_path={d}",
        "train {r} -w {w} overrides.actor.load={d} overrides.training.data_path={d} name=shown --resume",
        "train {r} -w {w} --dry-run",
        "train {r} -w {w} --rehearse imports",
    ),
    "data check": ("data check {d} --recipe quickstart manifest={m} -w {w}",),
    "data prepare": (
        "data prepare deepscaler --input {g} --output {o} --for mindspeed-rl --tokenizer {t} -w {w}",
    ),
    "faults": ("faults -w {w} --run",),
    "setup": (
        "setup -m {m} -w {w} --build",
        "setup -m {m} -w {w} --install",
        "setup -m {m} -w {w} --install --dry-run",
    ),
    "verify": ("verify -w {w} --imports",),
    "weights cast": ("weights cast {d} {o} -w {w}",),
    "weights check": ("weights check {d} -w {w}",),
    "weights audit": ("weights audit {d} {d} -w {w}",),
    "weights convert": ("weights convert {d} {o} --format hf -w {w}",),
    "weights export": ("weights export own {o} -w {w}",),
}
NAMED = ("doctor", "bundle create")
"""Commands without --workspace: they start what their option names, doctor also what you chose for this folder.

`bundle create` starts npu-rl's own interpreter, for pip."""
NOTES = {"recipes check": ("recipes check {r} -w {w}",)}
NOTHING = (
    *("setup -m {m} -w {w}", "verify -w {w}", "verify -w {w} --deep", "status -w {w}", "diff -w {w}"),
    *("summary -m {m} --offline", "lock -m {m} --check", "faults -w {w}", "store gc --dry-run"),
    *(
        "runs list -w {w}",
        "runs show shown -w {w}",
        "runs compare shown shown -w {w}",
        "runs stop shown -w {w}",
    ),
    *(
        "report shown -w {w} -o {o}.html",
        "recipes show {r}",
        "manifests diff {m} {m}",
        "patches export -w {w}",
    ),
    *("data prepare deepscaler --input {g} --output {o}", "weights check {d} -w {w} --write-hashes"),
    "patches lint verl/0.5.0",
)


@dataclass(frozen=True)
class Place:
    """A workspace of `own`, whose receipt names `marker`: a program that writes down that it ran, and its path."""

    paths: WorkspacePaths
    marker: Path
    words: Mapping[str, str]

    @property
    def log(self) -> Path:
        return self.marker.with_name("started")

    def ran(self, line: str, *more: str) -> tuple[int, str]:
        """Exit code and error of a command in this process."""
        words = {**self.words, "o": str(self.marker.with_name(os.urandom(6).hex()))}
        try:
            app.app([*(word.format(**words) for word in line.split()), *more], standalone_mode=False)
        except NpuRlError as error:
            return error.exit_code, str(error)
        except SystemExit as ended:
            return int(ended.code or 0), ""
        return 0, ""

    def started(self) -> list[str]:
        """The paths of the programs that were started since the last call."""
        found = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """One for all tests: each leaves it as it was."""
    home = tmp_path_factory.mktemp("own")
    repo = Repo(home / "own.git")
    repo.commit(CODE, "own")
    manifest = home / "own.yaml"
    manifest.write_text(MANIFEST.format(url=repo.url))
    recipe = write_recipe(home)
    recipe.write_text(recipe.read_text().replace("manifest: quickstart", f"manifest: {manifest}"))
    rows = [{"problem": f"What is ${n}+{n}$?", "answer": str(2 * n), "solution": ""} for n in range(40)]
    (home / "rows.json").write_text(json.dumps(rows))
    (home / "tokenizer").mkdir()
    (home / "tokenizer/tokenizer.json").write_text("{}")
    marker = home / "evil" / "python"
    marker.parent.mkdir()
    script(marker, f'echo "$PYTHONPATH" >> {marker.with_name("started")}\nexit 1')
    names = {
        "w": "w",
        "m": "own.yaml",
        "r": recipe.name,
        "d": "d",
        "t": "tokenizer",
        "g": "rows.json",
    }
    made = Place(WorkspacePaths(home / "w"), marker, {name: str(home / path) for name, path in names.items()})
    with pytest.MonkeyPatch.context() as patched:
        enter(patched, marker.parent, home)
        for line in (
            "lock -m {m}",
            "setup -m {m} -w {w}",
            "data prepare deepscaler --input {g} --output {d}",
        ):
            assert made.ran(line) == (0, ""), line
    assert "python" not in read_receipt(made.paths).setup
    receipt_with(made.paths, lambda body: body["setup"].update(python=str(marker)))
    write_samples(run(made.paths.root / "runs", "shown"), 1, [("q", "a", 1.0)])
    run(made.paths.root / "runs", "gone")
    return made


@pytest.fixture(autouse=True)
def state(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A state folder for each test."""
    enter(monkeypatch, place.marker.parent, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "npu-rl"


def enter(patched: pytest.MonkeyPatch, machine: Path, state: Path) -> None:
    for name, value in clean_env(machine).items():
        patched.setenv(name, value)
    patched.delenv("PYTHONPATH")
    patched.setenv("XDG_STATE_HOME", str(state))


@pytest.fixture
def copy(place: Place, tmp_path: Path) -> Place:
    """A workspace that may be changed."""
    shutil.copytree(place.paths.root, tmp_path / "w", symlinks=True)
    return replace(
        place, paths=WorkspacePaths(tmp_path / "w"), words={**place.words, "w": str(tmp_path / "w")}
    )


def commands(group: Any, before: tuple[str, ...] = ()) -> Iterator[str]:
    """Every command, those that are not listed in the help, too."""
    for name in group.table:
        command = group.get_command(None, name)
        if isinstance(command, LazyGroup):
            yield from commands(command, (*before, name))
        else:
            yield " ".join((*before, name))


def test_the_page_has_the_commands_that_start_one() -> None:
    table = PAGE.read_text().partition("| command | what it starts")[2].partition("\n\n")[0].splitlines()[2:]
    named = {name for row in table for name in re.findall(r"`([a-z -]+)`", row.split("|")[1])}
    assert named == {*STARTS, *NOTES, *NAMED} <= set(commands(typer.main.get_command(app.app)))


@pytest.mark.parametrize("command", sorted({*STARTS, *NOTES}))
def test_no_command_starts_what_only_the_receipt_names(
    place: Place, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    told = f"--python {place.marker}"
    for line in STARTS.get(command, ()):
        code, error = place.ran(line)
        assert code == 3 and "names an interpreter that you have not chosen" in error and told in error, line
    for line in NOTES.get(command, ()):
        assert place.ran(line)[0] == 0
        assert "own code (The workspace names an interpreter that you have" in capsys.readouterr().out
    assert place.started() == []


def test_the_others_start_nothing(place: Place) -> None:
    for line in NOTHING:
        assert place.ran(line) == (0, ""), line
    assert place.started() == []


def test_doctor_starts_nothing_that_only_the_receipt_names(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.paths.root)
    code, error = place.ran("doctor")
    assert code == 3 and "names an interpreter that you have not chosen" in error
    assert place.started() == []


ON_PATH = (
    STARTS["train"][:1],
    STARTS["data check"],
    STARTS["data prepare"],
    *NOTES.values(),
    STARTS["faults"],
)


@pytest.mark.parametrize("line", [line for lines in ON_PATH for line in lines])
def test_code_is_on_the_path_of_what_the_user_chose_once_it_is_proven(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str
) -> None:
    """In a shell that has sourced `activate` of two workspaces, and CANN's set_env.sh."""
    if line.startswith("recipes check"):
        monkeypatch.setattr(trainer_probe, "ask", hydra_in_process.ASK)
    other, code = tmp_path / "other", place.paths.code
    for folder in ("code", ".npu-rl"):
        (other / folder).mkdir(parents=True)
    (other / ".npu-rl/receipt.json").touch()
    monkeypatch.setenv("PYTHONPATH", f"{other}/code:/cann/python::{code}")
    chosen_interpreter.keep_choice(place.paths, str(place.marker))
    place.ran(line)
    searched = [one.split(":") for one in place.started()]
    if "train" in line:
        assert searched and all(one == [""] for one in searched)  # the look at the interpreter
    elif "faults" not in line:  # whose code the tree has not
        assert searched and all(str(code) in one and "/cann/python" in one for one in searched)
    assert not any(f"{other}/code" in one for one in searched)
    added = code / "own/utils/added.py"
    added.touch()
    try:
        place.ran(line)
    finally:
        added.unlink()
    assert place.started() == []


# -- the choice ------------------------------------------------------------------------------------------


def test_setup_keeps_the_choice_of_this_user_for_this_path(copy: Place, tmp_path: Path) -> None:
    paths, line = copy.paths, "setup -m {m} -w {w} --python"
    assert copy.ran(line, str(copy.marker)) == (0, "")
    assert chosen_interpreter.choose(None, paths) == str(copy.marker)
    assert chosen_interpreter.choose("mine", paths) == "mine"
    assert copy.ran(line, sys.executable) == (0, "")
    assert chosen_interpreter.choose(None, paths) == sys.executable
    assert read_receipt(paths).setup["python"] == sys.executable
    (tmp_path / "link").symlink_to(paths.root)
    assert chosen_interpreter.choose(None, WorkspacePaths(tmp_path / "link")) == sys.executable
    paths.root.rename(tmp_path / "moved")
    assert chosen_interpreter.chosen_for(WorkspacePaths(tmp_path / "moved")) is None


def test_a_setup_without_python_records_none(copy: Place, capsys: pytest.CaptureFixture[str]) -> None:
    (copy.paths.code / "own/train.py").write_text("mine\n")
    assert copy.ran("setup -m {m} -w {w} --discard") == (0, "")
    assert f"note: the workspace named the interpreter {copy.marker}" in capsys.readouterr().err
    assert "python" not in read_receipt(copy.paths).setup
    assert chosen_interpreter.choose(None, copy.paths) == sys.executable


def test_what_a_link_to_npu_rls_own_interpreter_has_beside_it_is_another(
    place: Place, tmp_path: Path
) -> None:
    """As in a virtual environment."""
    (tmp_path / "python").symlink_to(sys.executable)
    with pytest.raises(NpuRlError, match="have not chosen"):
        chosen_interpreter.choose(None, place.paths, {"python": str(tmp_path / "python")})


@pytest.mark.parametrize("name", ["", "python", "/nowhere/python", "/nul\0/python", sys.executable])
def test_a_receipt_with_npu_rls_own_or_none_that_is_there_changes_nothing(place: Place, name: str) -> None:
    """Older versions wrote their own interpreter into it."""
    assert chosen_interpreter.choose(None, place.paths, {"python": name}) == sys.executable


def test_one_that_is_gone_is_told(place: Place) -> None:
    chosen_interpreter.keep_choice(place.paths, "/nowhere/python")
    with pytest.raises(NpuRlError, match="does not exist here"):
        chosen_interpreter.choose(None, place.paths)


def test_a_choice_that_cant_be_kept_is_told(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    assert place.ran("setup -m {m} -w {w} --python", str(place.marker)) == (0, "")
    assert "can't be kept in your state folder" in capsys.readouterr().err
