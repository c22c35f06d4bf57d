"""The journalled swap: killed before every single change it makes, and finished by the next command."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from npu_rl.common.bundled import bundled_manifests
from npu_rl.common.confined_changes import Confined
from npu_rl.common.errors import WorkspaceError
from npu_rl.workspace.folder import local_edits, swap
from npu_rl.workspace.folder.interrupted_setup import interrupted_error
from npu_rl.workspace.folder.layout import MOVED, Layout
from npu_rl.workspace.folder.workspace_lock import exclusive
from tests.faults.killer import watch
from tests.workspace.stack import Stack, found, look, receipt_with, snapshot, without_privileges
from tests.workspace.test_hostile_workspace import said

# The test runner may have threads of its own; the child only ever runs Python of ours, and dies.
pytestmark = pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")

STAGING = "staging-0123456789ab"
OLD = "old-0123456789ab"


@pytest.fixture(scope="session")
def incoming(stack: Stack) -> Layout:
    """A workspace of the new lock that nobody may change."""
    return stack.make(stack.home / "incoming", stack.new)


def stage(layout: Layout, incoming: Layout) -> Path:
    """Put a new workspace where a setup has one before the swap."""
    staging = layout.hidden / STAGING
    shutil.copytree(
        incoming.root, staging, symlinks=True, ignore=shutil.ignore_patterns("busy.lock", "pycache")
    )
    return staging


def keep(old: Path, target: Path) -> None:
    """As setup does it: what a person did goes to `kept`."""
    local_edits.move_edits(Confined(old.parent.parent), old, local_edits.find_edits(old, {}), target)


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


def tidy(layout: Layout) -> list[str]:
    """What is in `.npu-rl`, less what belongs there."""
    usual = {"git", "lock.json", "receipt.json", "stat.json", "busy.lock", "kept", "pycache"}
    return sorted({p.name for p in layout.hidden.iterdir()} - usual)


def test_killed_before_every_change(layout: Layout, incoming: Layout, tmp_path: Path) -> None:
    """Work of a person is in the old workspace: it must be there, or be kept, after every one of the kills."""
    (layout.code / "beta/b.py").write_text("mine\n")
    (layout.root / "src/thesis").mkdir()
    (layout.root / "src/thesis/chapter.tex").write_text("mine\n")
    number, step, killed = 0, 1, True
    while killed:
        number += step
        here = Layout(tmp_path / "here")
        shutil.copytree(layout.root, here.root, symlinks=True)
        staging = stage(here, incoming)
        killed = die_at(number, tmp_path / "log", lambda h=here, s=staging: swap.swap(h, s, keep))
        journal = swap.read_journal(here)
        if journal is not None:
            step = 15 if journal.moved else 1  # what is left is the removal of the old files, one by one
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
    assert number > 100


def test_killed_again_while_finishing(layout: Layout, incoming: Layout, tmp_path: Path) -> None:
    for first in (6, 14, 22, 30):
        here = Layout(tmp_path / "here")
        shutil.copytree(layout.root, here.root, symlinks=True)
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


def test_a_part_that_cannot_be_moved_puts_everything_back(layout: Layout, incoming: Layout) -> None:
    """As happens if a part is a mount. Which only root can make, so here the rename is told to fail."""
    before = snapshot(layout.root)
    staging = stage(layout, incoming)
    move = Confined.move

    def refusing(self: Confined, source: Path, target: Path) -> None:
        if source == layout.root / "activate":
            raise OSError(16, "Device or resource busy", str(source))
        move(self, source, target)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Confined, "move", refusing)
        with pytest.raises(OSError, match="busy"):
            swap.swap(layout, staging, keep)
    assert snapshot(layout.root) == before


@pytest.mark.parametrize("name", ["code", "src", "activate", ".npu-rl/pycache", ".npu-rl/stat.json"])
def test_what_appears_in_a_place_of_ours_meanwhile(layout: Layout, incoming: Layout, name: str) -> None:
    """Killed with the old part out and the new one not yet in; somebody's program writes there before the next
    command comes."""
    (layout.hidden / "pycache").mkdir(exist_ok=True)
    staging = stage(layout, incoming)
    old = layout.hidden / OLD
    parts = frozenset(n for n in MOVED if os.path.lexists(staging / n))
    swap.Journal(staging, old, parts, layout.kept / "2026-01-01T00-00-00").write(layout)
    (old / name).parent.mkdir(parents=True)
    (layout.root / name).rename(old / name)
    if name in ("activate", ".npu-rl/stat.json"):
        (layout.root / name).write_text("appeared\n")
    else:
        (layout.root / name).mkdir()
        (layout.root / name / "appeared.txt").write_text("appeared\n")
    assert swap.finish(layout, keep)[0]
    assert found(layout, deep=True) == []
    assert tidy(layout) == []
    texts = [
        p.read_text()
        for p in layout.kept.rglob("*")
        if p.is_file() and p.name in ("activate", "appeared.txt")
    ]
    assert texts == ([] if name.startswith(".npu-rl/") else ["appeared\n"])


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


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "\0", f'{{"staging": "{STAGING}"}}', *(json.dumps({**GOOD, **bad}) for bad in HOSTILE)],
)
def test_a_damaged_or_hostile_journal_is_refused_and_nothing_is_removed(
    stack: Stack, layout: Layout, tmp_path: Path, text: str
) -> None:
    """A journal may come with a workspace of unknown origin: it must not name what is not a setup's."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/thesis.tex").write_text("mine\n")
    layout.journal.write_text(text)
    before = snapshot(tmp_path)
    with pytest.raises(WorkspaceError, match="journal"):
        swap.finish(layout, keep)
    for command in (["verify"], ["setup", "-m", str(stack.new), "--discard"]):
        done = stack.run(*command, "-w", layout.root)
        assert done.returncode == 3
        assert "Traceback" not in done.stderr
    assert snapshot(tmp_path) == before


def test_a_journal_says_what_it_is_about(layout: Layout) -> None:
    kept = layout.kept / layout.free_kept_name()
    journal = swap.Journal(layout.hidden / STAGING, layout.hidden / OLD, frozenset(["code"]), kept)
    journal.write(layout, moved=True)
    assert json.loads(layout.journal.read_text()) == {
        "staging": STAGING, "old": OLD, "in": ["code"], "kept": kept.name, "moved": True
    }  # fmt: skip
    assert swap.read_journal(layout) == dataclasses.replace(journal, moved=True)


@pytest.fixture
def interrupted(layout: Layout, incoming: Layout, tmp_path: Path) -> Layout:
    """A workspace with an edit, whose setup was killed in the middle of its swap."""
    staging = stage(layout, incoming)
    (layout.code / "beta/b.py").write_text("mine\n")
    assert die_at(9, tmp_path / "log", lambda: swap.swap(layout, staging, keep))
    assert layout.is_swapping
    return layout


@pytest.mark.parametrize("options", [(), ("--discard",)])
def test_setup_finishes(stack: Stack, interrupted: Layout, options: tuple[str, ...]) -> None:
    done = stack.setup(interrupted.root, stack.new, *options)
    assert done.returncode == 0, done.stderr
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


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
def test_a_command_that_looks_says_that_a_swap_is_pending(
    stack: Stack, interrupted: Layout, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    before = snapshot(interrupted.root)
    code, error = said(stack, capsys, *command, "-w", interrupted.root)
    assert code == 3
    assert "The setup of this workspace was interrupted" in error
    assert f"npu-rl setup --manifest NAME --workspace {interrupted.root}" in error
    assert snapshot(interrupted.root) == before


@pytest.mark.parametrize("named", ["outside", "bundled"])
def test_the_hint_repeats_no_path_that_the_workspace_chose(
    stack: Stack, interrupted: Layout, tmp_path: Path, named: str
) -> None:
    """What is to be copied has nothing that somebody else could have written: a bundled manifest's name at most."""
    other = tmp_path / "other.yaml"
    other.write_text(stack.new.read_text())
    chosen = other if named == "outside" else bundled_manifests()["quickstart"]
    for home in (interrupted.root, interrupted.hidden / STAGING):
        if Layout(home).receipt.is_file():
            receipt_with(Layout(home), lambda body: body["setup"].update(manifest=str(chosen)))
    error = str(interrupted_error(interrupted))
    name = "NAME" if named == "outside" else "quickstart"
    assert f"npu-rl setup --manifest {name} --workspace {interrupted.root}" in error
    assert str(other) not in error


def test_a_swap_that_goes_on_is_waited_for(stack: Stack, interrupted: Layout) -> None:
    """The journal is there, and so is who wrote it: `verify` waits, and judges what was put in place."""
    told: list[str] = []
    with exclusive(interrupted, told.append):
        process = subprocess.Popen(
            [sys.executable, "-m", "npu_rl", "verify", "-w", str(interrupted.root)],
            env=dict(stack.env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stderr is not None
        assert "Another npu-rl command is using" in process.stderr.readline()
        assert swap.finish(interrupted, keep)[0]
        assert process.poll() is None
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "equals its lock" in output


@pytest.mark.parametrize("undone", [False, True], ids=["done", "undone"])
def test_a_cache_that_verify_writes_amid_a_swap(
    stack: Stack, layout: Layout, incoming: Layout, monkeypatch: pytest.MonkeyPatch, undone: bool
) -> None:
    """`verify` works without a lock: its cache may appear as soon as the old one has been moved out."""
    staging = stage(layout, incoming)
    if undone:
        (staging / ".npu-rl/pycache").mkdir()  # the last part, whose move fails
    move = Confined.move
    written: list[Path] = []

    def verified_meanwhile(self: Confined, source: Path, target: Path) -> None:
        if source == staging / ".npu-rl/pycache":
            raise OSError(errno.EIO, "Input/output error", str(source))
        move(self, source, target)
        if source == layout.stat:
            source.write_text("of the old receipt\n")
            written.append(source)

    monkeypatch.setattr(Confined, "move", verified_meanwhile)
    if undone:
        with pytest.raises(OSError, match="Input/output error"):
            swap.swap(layout, staging, keep)
    else:
        swap.swap(layout, staging, keep)
    assert written
    assert found(layout) == []
    assert look(layout).lock.manifest == ("old" if undone else "new")
    assert layout.stat.read_text() != "of the old receipt\n"
    assert tidy(layout) == []


def test_a_workspace_that_is_not_ours_to_write_is_judged(stack: Stack, layout: Layout) -> None:
    """Copied without the file that holds it, and read-only: nothing is made."""
    (layout.hidden / "busy.lock").unlink()
    layout.stat.unlink()
    folders = [layout.root, *(p for p in layout.root.rglob("*") if p.is_dir() and not p.is_symlink())]
    for folder in folders:
        folder.chmod(0o555)
    before = snapshot(layout.root)
    try:
        for command in LOOKING[:4]:
            done = without_privileges(stack, *command, "-w", layout.root)
            assert done.returncode == 0, done.stderr
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert {k: v[1:] for k, v in snapshot(layout.root).items()} == {k: v[1:] for k, v in before.items()}


def test_nothing_to_do_still_sweeps(stack: Stack, layout: Layout, incoming: Layout) -> None:
    """Killed before the journal: the old workspace stands, and its own lock is set up again."""
    stage(layout, incoming)
    (layout.hidden / ".journal.json.0123456789ab").write_text("{")
    (layout.hidden / ".clock-12-345").write_text("")
    for name in ("mine.txt", ".clock-and-calendar.txt"):
        (layout.hidden / name).write_text("not ours\n")
    done = stack.setup(layout.root)
    assert "nothing to do" in done.stdout
    assert tidy(layout) == [".clock-and-calendar.txt", "mine.txt"]
