"""The journalled swap: killed before every single change it makes, and finished by the next command."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from npu_rl.common.errors import WorkspaceError
from npu_rl.workspace.folder import local_edits, swap
from npu_rl.workspace.folder.workspace_lock import exclusive
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from tests.faults.killer import watch
from tests.support import ok
from tests.workspace.stack import Stack, found, look, snapshot, unchanged
from tests.workspace.test_hostile_workspace import said

# The test runner may have threads of its own; the child only ever runs Python of ours, and dies.
pytestmark = pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")

STAGING = "staging-0123456789ab"
OLD = "old-0123456789ab"


def stage(paths: WorkspacePaths, incoming: WorkspacePaths) -> Path:
    """Put a new workspace where a setup has one before the swap."""
    staging = paths.hidden / STAGING
    linked(incoming.root, staging, "busy.lock")
    return staging


def linked(source: Path, target: Path, *without: str) -> None:
    """A copy with the same files: whoever changes one puts another in its place, and links are cheap."""
    ignore = shutil.ignore_patterns(*without)
    shutil.copytree(source, target, symlinks=True, ignore=ignore, copy_function=os.link)


def keep(old: Path, target: Path) -> None:
    """As setup does it: what a person did goes to `kept`."""
    local_edits.move_edits(old, local_edits.find_edits(old, {}), target)


def die_at(number: int, log: Path, action: Callable[[], object]) -> bool:
    """Run it in a process that dies before its change with this number; whether it did."""
    child = os.fork()
    if child == 0:
        try:
            watch(number, str(log))
            action()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    return False


def tidy(paths: WorkspacePaths) -> list[str]:
    """What is in `.npu-rl`, less what belongs there."""
    usual = {"git", "lock.json", "receipt.json", "stat.json", "busy.lock", "kept"}
    return sorted({p.name for p in paths.hidden.iterdir()} - usual)


@pytest.mark.parametrize(
    ("first", "step"), [(1, 19), pytest.param(1, 1, marks=pytest.mark.nightly)], ids=["some", "every"]
)
def test_killed_before_every_change(
    paths: WorkspacePaths, incoming: WorkspacePaths, tmp_path: Path, first: int, step: int
) -> None:
    """Work of a person is in the old workspace: it must be there, or be kept, after every one of the kills."""
    (paths.code / "beta/b.py").write_text("mine\n")
    (paths.root / "src/thesis").mkdir()
    (paths.root / "src/thesis/chapter.tex").write_text("mine\n")
    number, killed = first, True
    while killed:
        here = WorkspacePaths(tmp_path / "here")
        linked(paths.root, here.root)
        staging = stage(here, incoming)
        killed = die_at(number, tmp_path / "log", lambda h=here, s=staging: swap.swap(h, s, keep))
        journal = swap.read_journal(here)
        if journal is not None:
            if journal.moved:
                step = max(step, 15)  # what is left is the removal of the old files, one by one
            assert swap.finish(here, keep)[0]
        swap.sweep(here)
        assert tidy(here) == [], number
        moved = look(here).lock.manifest == "new"
        homes = [next(here.kept.iterdir())] if moved else [here.root]
        assert (homes[0] / "code/beta/b.py").read_text() == "mine\n"
        assert (homes[0] / "src/thesis/chapter.tex").read_text() == "mine\n"
        if moved:
            assert found(here, deep=True) == []
            assert not (here.root / "src").exists()
        shutil.rmtree(here.root)
        number += step
    assert number > 100


@pytest.mark.parametrize("firsts", [(), pytest.param((6, 22, 30), marks=pytest.mark.nightly)], ids=len)
def test_killed_again_while_finishing(
    paths: WorkspacePaths, incoming: WorkspacePaths, tmp_path: Path, firsts: tuple[int, ...]
) -> None:
    for first in (14, *firsts):
        here = WorkspacePaths(tmp_path / "here")
        shutil.copytree(paths.root, here.root, symlinks=True)
        (here.code / "beta/b.py").write_text("mine\n")
        staging = stage(here, incoming)
        assert die_at(first, tmp_path / "log", lambda h=here, s=staging: swap.swap(h, s, keep))
        rounds = 0
        while here.journal.exists():
            rounds += 1
            die_at(rounds + 1, tmp_path / "log", lambda h=here: swap.finish(h, keep))
        assert rounds > 1
        swap.sweep(here)
        assert tidy(here) == []
        assert found(here, deep=True) == []
        assert [(folder / "code/beta/b.py").read_text() for folder in here.kept.iterdir()] == ["mine\n"]
        shutil.rmtree(here.root)


def test_a_part_that_cannot_be_moved_puts_everything_back(
    paths: WorkspacePaths, incoming: WorkspacePaths
) -> None:
    """As happens if a part is a mount. Which only root can make, so here the rename is told to fail."""
    before = snapshot(paths.root)
    staging = stage(paths, incoming)
    move = swap.move_new

    def refusing(source: Path, target: Path) -> None:
        if source == paths.root / "activate":
            raise OSError(16, "Device or resource busy", str(source))
        move(source, target)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(swap, "move_new", refusing)
        with pytest.raises(OSError, match="busy"):
            swap.swap(paths, staging, keep)
    assert snapshot(paths.root) == before


GOOD = {"staging": STAGING, "old": OLD, "in": [], "kept": "2026-01-01T00-00-00", "moved": True}
HOSTILE: list[dict[str, object]] = [
    {"staging": "../../precious"},
    {"old": ".."},
    {"old": "kept"},
    {"in": ["../precious"], "moved": False},
    {"kept": "../.."},
    {"staging": 3},
    {"in": None},
]


def test_a_damaged_journal_is_refused_and_nothing_is_removed(
    stack: Stack, paths: WorkspacePaths, tmp_path: Path
) -> None:
    """It must not name what is not a setup's."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/thesis.tex").write_text("mine\n")
    for text in (
        "",
        "[]",
        "\0",
        f'{{"staging": "{STAGING}"}}',
        *(json.dumps({**GOOD, **bad}) for bad in HOSTILE),
    ):
        paths.journal.write_text(text)
        with unchanged(tmp_path):
            with pytest.raises(WorkspaceError, match="journal"):
                swap.finish(paths, keep)
            for command in (["verify"], ["setup", "-m", str(stack.new), "--discard"]):
                assert said(stack, *command, "-w", paths.root)[0] == 3
    paths.journal.write_text(json.dumps(GOOD))
    assert swap.finish(paths, keep) == (True, None)
    assert found(paths) == []


@pytest.fixture
def interrupted(paths: WorkspacePaths, incoming: WorkspacePaths, tmp_path: Path) -> WorkspacePaths:
    """A workspace with an edit, whose setup was killed in the middle of its swap."""
    staging = stage(paths, incoming)
    (paths.code / "beta/b.py").write_text("mine\n")
    assert die_at(9, tmp_path / "log", lambda: swap.swap(paths, staging, keep))
    assert paths.is_swapping
    return paths


@pytest.mark.parametrize("options", [(), ("--discard",)])
def test_setup_finishes_an_interrupted_swap(
    stack: Stack, interrupted: WorkspacePaths, options: tuple[str, ...]
) -> None:
    done = ok(stack.lay(interrupted.root, stack.new, *options))
    assert "Finished an interrupted setup." in done.stderr
    (folder,) = interrupted.kept.iterdir()
    assert str(folder) in done.stderr
    assert (folder / "code/beta/b.py").read_text() == "mine\n"
    assert tidy(interrupted) == []


LOOKING = (
    ("verify",),
    ("verify", "--deep"),
    ("status",),
    ("diff",),
    ("plan", "quickstart"),
    ("recipes", "check", "quickstart"),
    ("train", "quickstart", "--dry-run"),
)


def test_a_command_that_looks_says_that_a_swap_is_pending(stack: Stack, interrupted: WorkspacePaths) -> None:
    with unchanged(interrupted.root):
        for command in LOOKING:
            code, error = said(stack, *command, "-w", interrupted.root)
            assert code == 3
            assert "The setup of this workspace was interrupted" in error
            assert f"npu-rl setup --manifest NAME --workspace {interrupted.root}" in error


def test_a_swap_that_goes_on_is_waited_for(stack: Stack, interrupted: WorkspacePaths) -> None:
    """The journal is there, and so is who wrote it: `verify` waits, and judges what was put in place."""
    told: list[str] = []
    with exclusive(interrupted, told.append):
        process = stack.start("verify", "-w", interrupted.root)
        assert process.stderr is not None
        assert "Another npu-rl command is using" in process.stderr.readline()
        assert swap.finish(interrupted, keep)[0]
        assert process.poll() is None
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "equals its lock" in output


def test_setup_with_nothing_to_do_removes_leftovers(
    stack: Stack, paths: WorkspacePaths, incoming: WorkspacePaths
) -> None:
    """Killed before the journal: the old workspace stands, and its own lock is set up again."""
    stage(paths, incoming)
    (paths.hidden / ".journal.json.0123456789ab").write_text("{")
    (paths.hidden / ".clock-12-345").write_text("")
    for name in ("mine.txt", ".clock-and-calendar.txt"):
        (paths.hidden / name).write_text("not ours\n")
    done = stack.setup(paths.root)
    assert "nothing to do" in done.stdout
    assert tidy(paths) == [".clock-and-calendar.txt", "mine.txt"]
