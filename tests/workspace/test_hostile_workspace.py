"""A workspace of unknown origin: whatever stands in it, no command changes anything outside, hangs or falls over.

The folder `victim` stands for a person's home. It is compared by content, inode, mode and time of change.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from tests.in_process import run_here
from tests.support import ok, script
from tests.workspace.stack import Stack, receipt_with

STAGING, OLD, KEPT = "staging-0123456789ab", "old-0123456789ab", "2020-01-01T00-00-00"
RECIPE = "quickstart"
ID = "0" * 40


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    home = tmp_path / "victim"
    for path in ("b.py", ".bashrc", "folder/b.py", "beta/b.py", "code/beta/b.py", "busy.lock", "core.py"):
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(f"precious {path}\n")
    return home


def untouched(home: Path) -> dict[str, tuple[object, ...]]:
    """Everything that a change of the victim would change."""
    seen: dict[str, tuple[object, ...]] = {}
    for path in sorted((home, *home.rglob("*"))):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        seen[str(path)] = (status.st_mode, status.st_ino, status.st_mtime_ns, content)
    return seen


@contextlib.contextmanager
def in_time(seconds: int) -> Iterator[None]:
    """A command that waits for a pipe is no more than a failed test."""

    def late(_number: int, _frame: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def said(stack: Stack, *words: str | Path) -> tuple[int, str]:
    """Exit code and error of a command in this process: anything but our own errors is a traceback."""
    with in_time(30):
        done = run_here(words, stack.env)
    return done.returncode, done.stderr


# -- receipts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pending", [True, False])
def test_a_receipt_names_only_places_of_a_workspace(
    stack: Stack, paths: WorkspacePaths, victim: Path, pending: bool
) -> None:
    """Its root "../victim" was searched for local work, and each file found was renamed into the workspace."""
    root = "../../../victim" if pending else "../victim"  # from `.npu-rl/old-*`, or from the workspace
    receipt_with(
        paths, lambda body: [body[k].update({root: v}) for k, v in {"files": [], "commits": ID}.items()]
    )
    if pending:
        old = paths.hidden / OLD
        shutil.copytree(paths.root / "code", old / "code")
        (old / ".npu-rl").mkdir()
        shutil.copy(paths.receipt, old / ".npu-rl/receipt.json")
        journal = {"staging": STAGING, "old": OLD, "in": [], "kept": KEPT, "moved": False}
        paths.journal.write_text(json.dumps(journal))
    before = untouched(victim)
    assert said(stack, "verify", "-w", paths.root)[0] == 3
    assert said(stack, "setup", "-m", stack.new, "--discard", "-w", paths.root)[0] == 0
    assert untouched(victim) == before


BODIES: list[Callable[[dict[str, Any]], object]] = [
    lambda b: b.update(files=[]),
    lambda b: [b[k].pop("code") for k in ("files", "trees", "commits")],
    *(lambda b, r=root: b["files"].update({r: []}) for root in ("/etc", "src/../..", ".npu-rl", "src/a/b")),
    lambda b: b["commits"].update(code="--output=/tmp/x"),
    lambda b: b["commits"].pop("code"),
    lambda b: b["trees"].update(code=3),
    lambda b: b["setup"].update(lock="0" * 64),
    lambda b: b.pop("setup"),
    lambda b: b.update(receipt_format=[1]),
    lambda b: b["texts"].update(x=3),
    lambda b: b.update(hunks=[3]),
    *(lambda b, k=key: b["hunks"][0].pop(k) for key in ("root", "state", "component")),
    lambda b: b["hunks"][0].update(file=3),
    lambda b: b["hunks"][0].update(lines=[["+"]]),
]
_NAMES = ("", "/etc/passwd", "a//b", "a/..", "a/.git/x", "a/.GIT", "nul\0", "half\ud800", 3)
ENTRIES = [
    *([name, "100644", ID] for name in _NAMES),
    ["beta/b.py", "100644", ID],
    ["beta/b.py/x", "100644", ID],
    ["x", "100664", ID],
    *(["x", "100644", text] for text in (ID[1:], "A" * 40, " " * 40)),
    ["x", "100644"],
    ["x", "100644", ID, ID],
    ["x/" * 3000 + "x", "100644", ID],
]


def test_a_receipt_with_the_right_digest_and_odd_content(stack: Stack, paths: WorkspacePaths) -> None:
    paths.stat.unlink()
    text = paths.receipt.read_text()
    entries = [lambda b, e=entry: b["files"]["code"].append(e) for entry in ENTRIES]
    for number, change in enumerate([*BODIES, *entries]):
        paths.receipt.write_text(text)
        receipt_with(paths, change)
        code, error = said(stack, "verify", "-w", paths.root)
        assert code == 3 and "receipt" in error, (number, error)
    paths.receipt.write_text(text)
    receipt_with(paths, BODIES[2])  # a root that is no folder of a workspace
    for words, expected in (
        (["status"], 3),
        (["setup", "-m", stack.old], 3),
        (["setup", "-m", stack.old, "--discard"], 0),
    ):
        code, error = said(stack, *words, "-w", paths.root)
        assert code == expected, error


# -- everything, everywhere ------------------------------------------------------------------------------

PLACES = (
    ".npu-rl/lock.json", ".npu-rl/receipt.json", ".npu-rl/stat.json", ".npu-rl/journal.json", ".npu-rl/busy.lock",
    ".npu-rl/kept", ".npu-rl/git", ".npu-rl/git/code", "activate", "code", "code/.git", "code/beta", "src/gamma",
)  # fmt: skip
KINDS: dict[str, Callable[[Path, Path], object]] = {
    "link to a folder": lambda place, victim: place.symlink_to(victim),
    "link to a file": lambda place, victim: place.symlink_to(victim / ".bashrc"),
    "pipe": lambda place, victim: os.mkfifo(place),
    "folder": lambda place, victim: (place / "x").mkdir(parents=True),
    "no text": lambda place, victim: place.write_bytes(b"\0\xff\xfe{"),
    "deep": lambda place, victim: place.write_text("[" * 100_000),
    "large": lambda place, victim: (place.touch(), os.truncate(place, 2**40)),
}


# Every ninth in the first tier: each kind and most places are among them.
CASES = [
    pytest.param(*case, marks=() if number % 9 == 0 else pytest.mark.second)
    for number, case in enumerate(itertools.product(PLACES, KINDS))
]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_no_traceback_and_nothing_outside_changed(
    stack: Stack, paths: WorkspacePaths, victim: Path, name: str, kind: str
) -> None:
    place = paths.root / name
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    KINDS[kind](place, victim)
    before = untouched(victim)
    for words in (["verify"], ["diff"], ["setup", "-m", stack.new], ["setup", "-m", stack.new, "--discard"]):
        said(stack, *words, "-w", paths.root)
        assert untouched(victim) == before, words


# -- programs that a workspace names ----------------------------------------------------------------------

CONFIG = """\
[core]
\trepositoryformatversion = 0
\tfsmonitor = {program}
\thooksPath = {folder}
\tpager = {program}
\tsshCommand = {program}
\taskPass = {program}
\teditor = {program}
\talternateRefsCommand = {program}
\tattributesFile = {folder}/attributes
\tworktree = {folder}
[diff]
\texternal = {program}
[diff "evil"]
\ttextconv = {program}
\tcommand = {program}
[filter "evil"]
\tclean = {program}
\tsmudge = {program}
\tprocess = {program}
\trequired = true
[gpg]
\tprogram = {program}
[log]
\tshowSignature = true
[pager]
\trev-list = {program}
[uploadpack]
\tpackObjectsHook = {program}
[extensions]
\tpartialClone = origin
[remote "origin"]
\turl = {folder}
\tuploadpack = {program}
\tpromisor = true
[include]
\tpath = {folder}/more
"""


def name_programs(paths: WorkspacePaths, folder: Path) -> Path:
    """Let every setting of the workspace's repositories name a program; the file it makes when it is run."""
    folder.mkdir()
    marker = folder / "ran"
    program = script(folder / "program", f"echo ran $0 $* >> {marker}\ncat")
    for hook in ("post-index-change", "post-checkout", "reference-transaction", "fsmonitor-watchman"):
        shutil.copy(program, folder / hook)
    for name in ("attributes", "more"):
        (folder / name).write_text(
            "* filter=evil diff=evil\n" if name == "attributes" else "[alias]\n\tx = !y\n"
        )
    for repository in (paths.git / "code", paths.git / "src-gamma"):
        (repository / "config").write_text(CONFIG.format(program=program, folder=folder))
        (repository / "info/attributes").write_text("* filter=evil diff=evil\n")
        (repository / "hooks").mkdir(exist_ok=True)
        shutil.copy(program, repository / "hooks/post-index-change")
        (repository / "objects/info/promisor").write_text("")
    (paths.code / ".gitattributes").write_text("* filter=evil diff=evil\n")
    return marker


def test_nothing_that_a_workspace_names_is_run(stack: Stack, paths: WorkspacePaths, tmp_path: Path) -> None:
    """Its interpreter, and what the configuration of its repositories names; also with an object that is missing."""
    program = str(tmp_path / "evil/program")
    marker = name_programs(paths, tmp_path / "evil")
    receipt_with(paths, lambda body: body["setup"].update(python=program, manifest=program))
    (paths.code / "beta/b.py").write_text("changed\n")
    (paths.git / "code/refs/heads/gone").write_text("ab" * 20 + "\n")
    (paths.git / "code/objects/ab").mkdir()
    (paths.git / "code/objects/ab/cdef").write_text("")
    path = f"{tmp_path / 'evil'}{os.pathsep}{stack.env['PATH']}"  # a name without a slash would be found, too
    there = replace(stack, env={**stack.env, "PATH": path})
    setup = ("setup", "-m", stack.new)
    looks = (("verify",), ("status",), ("diff",), ("recipes", "check", RECIPE), ("plan", RECIPE))
    for words in (*looks, setup, (*setup, "--discard")):
        said(there, *words, "-w", paths.root)
        assert not marker.exists(), (words, marker.read_text())


def test_diff_shows_nothing_from_beyond_a_link(stack: Stack, paths: WorkspacePaths, victim: Path) -> None:
    shutil.rmtree(paths.code / "beta")
    (paths.code / "beta").symlink_to(victim / "beta")
    done = ok(stack.run("diff", "-w", paths.root))
    assert "precious" not in done.stdout
    assert "deleted file" in done.stdout
