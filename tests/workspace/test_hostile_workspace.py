"""A workspace of unknown origin: whatever stands in it, no command changes anything outside, hangs or falls over.

The folder `victim` stands for a person's home. It is compared by content, inode, mode and time of change.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from npu_rl.workspace.folder import swap
from npu_rl.workspace.folder.workspace_paths import MOVED, WorkspacePaths
from tests.hostile.limits import limited_cli
from tests.in_process import run_here
from tests.support import assert_told, ok, script
from tests.workspace.stack import Stack, found, receipt_with, snapshot

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


def interrupt(paths: WorkspacePaths, incoming: WorkspacePaths) -> None:
    """The workspace as a setup leaves it that is killed when all is moved, with an edit still to be put aside."""
    (paths.code / "beta/b.py").write_text("B = 'mine'\n")
    old = paths.hidden / OLD
    for name in MOVED:
        if os.path.lexists(paths.root / name):
            (old / name).parent.mkdir(parents=True, exist_ok=True)
            (paths.root / name).rename(old / name)
    skip = shutil.ignore_patterns("busy.lock", "pycache")
    shutil.copytree(incoming.root, paths.root, symlinks=True, dirs_exist_ok=True, ignore=skip)
    (paths.hidden / STAGING / ".npu-rl").mkdir(parents=True)
    parts = frozenset(n for n in MOVED if os.path.lexists(incoming.root / n) and n != ".npu-rl/pycache")
    swap.Journal(paths.hidden / STAGING, old, parts, paths.kept / KEPT).write(paths)


# -- what was reported -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["verify", "status", "diff", "setup", "discard"])
def test_what_is_put_aside_goes_through_no_link(
    stack: Stack, paths: WorkspacePaths, victim: Path, tmp_path: Path, command: str
) -> None:
    """Work of "the old workspace" was renamed to kept/TIME/code/.bashrc, where kept/TIME/code led home."""
    old = paths.hidden / OLD
    (old / ".npu-rl").mkdir(parents=True)
    shutil.copy(paths.receipt, old / ".npu-rl/receipt.json")
    (old / "code").mkdir()
    (old / "code/.bashrc").write_text("evil\n")
    (paths.kept / KEPT).mkdir(parents=True)
    (paths.kept / KEPT / "code").symlink_to(victim)
    journal = {"staging": STAGING, "old": OLD, "in": list(MOVED), "kept": KEPT, "moved": False}
    paths.journal.write_text(json.dumps(journal))
    before = untouched(victim), snapshot(paths.root)
    words = {
        "setup": ["setup", "-m", str(stack.old)],
        "discard": ["setup", "-m", str(stack.new), "--discard"],
    }
    done = stack.run(*words.get(command, [command]), "-w", paths.root)
    assert done.returncode == 3
    assert untouched(victim) == before[0]
    if command in ("verify", "status", "diff"):
        assert snapshot(paths.root) == before[1]
        assert "was interrupted" in done.stderr
    else:
        assert "is a symbolic link" in done.stderr


@pytest.mark.parametrize("command", ["verify", "status", "diff", "discard"])
@pytest.mark.parametrize("pending", [True, False])
def test_a_receipt_names_only_places_of_a_workspace(
    stack: Stack, paths: WorkspacePaths, victim: Path, command: str, pending: bool
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
    words = ["setup", "-m", str(stack.new), "--discard"] if command == "discard" else [command]
    done = stack.run(*words, "-w", paths.root)
    assert "Traceback" not in done.stderr
    assert untouched(victim) == before
    assert done.returncode == (0 if command == "discard" else 3), done.stderr


def test_the_file_that_holds_a_workspace_leads_nowhere(
    stack: Stack, paths: WorkspacePaths, victim: Path
) -> None:
    """Opening the lock file emptied whatever it led to."""
    (paths.hidden / "busy.lock").unlink()
    (paths.hidden / "busy.lock").symlink_to(victim / ".bashrc")
    before = untouched(victim)
    assert_told(stack.lay(paths.root, stack.new), "busy.lock is not a regular file", code=3)
    (paths.hidden / "busy.lock").unlink()
    os.link(victim / ".bashrc", paths.hidden / "busy.lock")
    assert stack.lay(paths.root, stack.new).returncode == 0
    assert untouched(victim) == before


# -- receipts --------------------------------------------------------------------------------------------

BODIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "files a list": lambda b: b.update(files=[]),
    "no code": lambda b: [b[k].pop("code") for k in ("files", "trees", "commits")],
    "root absolute": lambda b: b["files"].update({"/etc": []}),
    "root in src": lambda b: b["files"].update({"src/../..": []}),
    "root .npu-rl": lambda b: b["files"].update({".npu-rl": []}),
    "root of two folders": lambda b: b["files"].update({"src/a/b": []}),
    "commit an option": lambda b: b["commits"].update(code="--output=/tmp/x"),
    "commit missing": lambda b: b["commits"].pop("code"),
    "tree a number": lambda b: b["trees"].update(code=3),
    "hunks a mapping": lambda b: b.update(hunks={}),
    "texts a list": lambda b: b.update(texts=[]),
    "text a number": lambda b: b["texts"].update(x=1),
    "text half a pair": lambda b: b["texts"].update(x="\ud800"),
    "setup a list": lambda b: b.update(setup=[]),
    "made a text": lambda b: b["setup"].update(made="now"),
    "made out of time": lambda b: b["setup"].update(made=2**60),
    "python a list": lambda b: b["setup"].update(python=["rm"]),
    "manifest a number": lambda b: b["setup"].update(manifest=3),
    "lock no digest": lambda b: b["setup"].update(lock="abc"),
    "lock another": lambda b: b["setup"].update(lock="0" * 64),
    "no setup": lambda b: b.pop("setup"),
    "format a list": lambda b: b.update(receipt_format=[1]),
}
for path in ("", "/etc/passwd", "a//b", "./a", "a/..", "../a", "a/.git/x", "a/.GIT", "nul\0", "half\ud800"):
    BODIES[f"path {path!r}"] = lambda b, p=path: b["files"]["code"].append([p, "100644", ID])
for name, entry in {
    "twice": ["beta/b.py", "100644", ID],
    "below a file": ["beta/b.py/x", "100644", ID],
    "mode": ["x", "100664", ID],
    "short id": ["x", "100644", ID[1:]],
    "upper id": ["x", "100644", "A" * 40],
    "id with spaces": ["x", "100644", " " * 40],
    "path a list": [["x"], "100644", ID],
    "path a number": [3, "100644", ID],
    "too short": ["x", "100644"],
    "too long": ["x", "100644", ID, ID],
    "deep": ["x/" * 3000 + "x", "100644", ID],
}.items():
    BODIES[f"file {name}"] = lambda b, e=entry: b["files"]["code"].append(e)
for key, value in {
    "root": "../victim", "file": "../../victim/b.py", "component": "a\ud800", "patch": None, "hunk": "1", "line": -1,
    "state": "missing", "before": None, "lines": [["+"]], "after": [3], "copies": [1],
}.items():  # fmt: skip
    BODIES[f"hunk {key}"] = lambda b, k=key, v=value: b["hunks"][0].update({k: v})
    BODIES[f"hunk no {key}"] = lambda b, k=key: b["hunks"][0].pop(k)


@pytest.fixture(scope="module")
def drifted(template: WorkspacePaths, tmp_path_factory: pytest.TempPathFactory) -> WorkspacePaths:
    """A workspace with a file changed, so that hunks are judged, and without a record of the last proof."""
    paths = WorkspacePaths(tmp_path_factory.mktemp("drifted") / "w")
    shutil.copytree(template.root, paths.root, symlinks=True)
    (paths.code / "alpha/core.py").write_text("changed\n")
    paths.stat.unlink()
    return paths


@pytest.mark.parametrize("odd", BODIES)
def test_a_receipt_with_the_right_digest_and_odd_content(
    stack: Stack,
    template: WorkspacePaths,
    drifted: WorkspacePaths,
    odd: str,
) -> None:
    shutil.copy(template.receipt, drifted.receipt)
    receipt_with(drifted, BODIES[odd])
    for command in ("verify", "diff"):
        code, error = said(stack, command, "-w", drifted.root)
        assert code == 3
        assert "receipt" in error


@pytest.mark.parametrize("command", ["status", "setup", "discard"])
def test_other_commands_with_an_odd_receipt(stack: Stack, paths: WorkspacePaths, command: str) -> None:
    for odd in ("root absolute", "hunk no copies", "file below a file", "made a text"):
        receipt_with(paths, BODIES[odd])
        paths.stat.unlink(missing_ok=True)
        words = ["setup", "-m", stack.old, *(["--discard"] if command == "discard" else [])]
        code, error = said(stack, *(words if command != "status" else ["status"]), "-w", paths.root)
        assert code == (0 if command == "discard" else 3), error


@pytest.mark.parametrize("place", ["quickstart.dry-run", "quickstart/attempts"])
def test_a_run_is_recorded_through_no_link(
    stack: Stack, paths: WorkspacePaths, victim: Path, place: str
) -> None:
    link = paths.root / "runs" / place
    link.parent.mkdir(parents=True)
    link.symlink_to(victim)
    before = untouched(victim)
    for options in ([], ["--dry-run"]):
        done = stack.run("train", "quickstart", "name=quickstart", *options, "-w", paths.root)
        assert_told(done, f"{link} is a symbolic link", code=3)
    assert untouched(victim) == before


def test_a_receipt_of_an_older_npu_rl_is_read(stack: Stack, paths: WorkspacePaths) -> None:
    receipt_with(paths, lambda body: body["setup"].pop("lock"))
    assert found(paths, deep=True) == []


# -- everything, everywhere ------------------------------------------------------------------------------

CLEAN = (
    ".npu-rl", ".npu-rl/lock.json", ".npu-rl/receipt.json", ".npu-rl/stat.json", ".npu-rl/journal.json",
    ".npu-rl/busy.lock", ".npu-rl/kept", ".npu-rl/git", ".npu-rl/git/code", ".npu-rl/git/code/packed-refs",
    ".npu-rl/git/objects", ".npu-rl/git/objects/info/alternates", ".npu-rl/git/objects/pack/pack-0.idx",
    ".npu-rl/git/code/refs/heads/x", ".npu-rl/git/code/logs", ".npu-rl/git/code/config", ".npu-rl/pycache",
    "activate", "code", "code/.git", "code/beta", "code/beta/b.py",
    "src", "src/gamma",
)  # fmt: skip
PENDING = (
    ".npu-rl/journal.json", f".npu-rl/{STAGING}", f".npu-rl/{STAGING}/.npu-rl", f".npu-rl/{OLD}",
    f".npu-rl/{OLD}/code", f".npu-rl/{OLD}/code/beta", f".npu-rl/{OLD}/src", f".npu-rl/{OLD}/.npu-rl",
    f".npu-rl/{OLD}/.npu-rl/receipt.json", f".npu-rl/{OLD}/.npu-rl/stat.json", f".npu-rl/{OLD}/.npu-rl/git",
    f".npu-rl/{OLD}/activate", ".npu-rl/kept", f".npu-rl/kept/{KEPT}", f".npu-rl/kept/{KEPT}/code",
    f".npu-rl/kept/{KEPT}/code/beta", f".npu-rl/kept/{KEPT}/code/beta/b.py",
)  # fmt: skip


def large(place: Path, victim: Path) -> None:
    with place.open("wb") as file:
        file.truncate(2**40)


FEW: dict[str, Callable[[Path, Path], object]] = {
    "link to a folder": lambda place, victim: place.symlink_to(victim),
    "pipe": lambda place, victim: os.mkfifo(place),
}
KINDS = FEW | {
    "link to a file": lambda place, victim: place.symlink_to(victim / ".bashrc"),
    "hard link": lambda place, victim: os.link(victim / ".bashrc", place),
    "folder": lambda place, victim: (place / "x").mkdir(parents=True),
    "no text": lambda place, victim: place.write_bytes(b"\0\xff\xfe{"),
    "deep": lambda place, victim: place.write_text("[" * 100_000),
    "large": large,
}
CASES = [
    (False, place, kind) for place in CLEAN for kind in (KINDS if place.endswith((".json", ".lock")) else FEW)
]
CASES += [(True, place, kind) for place in PENDING for kind in (KINDS if "journal" in place else FEW)]


@pytest.mark.parametrize(("pending", "name", "kind"), CASES)
def test_any_place_any_command(
    stack: Stack,
    paths: WorkspacePaths,
    incoming: WorkspacePaths,
    victim: Path,
    pending: bool,
    name: str,
    kind: str,
) -> None:
    if pending:
        interrupt(paths, incoming)
    place = paths.root / name
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    KINDS[kind](place, victim)
    if name.startswith(".npu-rl/git"):  # git is asked only where there is something to ask
        (paths.code / "beta/b.py").write_text("changed\n")
        with contextlib.suppress(OSError):
            (paths.git / "code/objects/ab").mkdir()
            (paths.git / "code/objects/ab/cdef").write_text("")
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


@pytest.mark.parametrize("command", ["verify", "status", "diff", "recipes check", "plan", "setup", "discard"])
def test_nothing_that_a_workspace_names_is_run(
    stack: Stack, paths: WorkspacePaths, tmp_path: Path, command: str
) -> None:
    """Its interpreter, and what the configuration of its repositories names; also with an object that is missing."""
    marker = name_programs(paths, tmp_path / "evil")
    receipt_with(
        paths,
        lambda body: body["setup"].update(
            python=str(tmp_path / "evil/program"), manifest=str(tmp_path / "evil/program")
        ),
    )
    (paths.code / "beta/b.py").write_text("changed\n")
    (paths.git / "code/refs/heads/gone").write_text("ab" * 20 + "\n")
    (paths.git / "code/objects/ab").mkdir()
    (paths.git / "code/objects/ab/cdef").write_text("")
    words = {
        "setup": ["setup", "-m", str(stack.new)],
        "discard": ["setup", "-m", str(stack.new), "--discard"],
        "recipes check": ["recipes", "check", RECIPE],
        "plan": ["plan", RECIPE],
    }.get(command, [command])
    path = f"{tmp_path / 'evil'}{os.pathsep}{stack.env['PATH']}"  # a name without a slash would be found, too
    said(replace(stack, env={**stack.env, "PATH": path}), *words, "-w", paths.root)
    assert not marker.exists(), marker.read_text()


def test_diff_shows_nothing_from_beyond_a_link(stack: Stack, paths: WorkspacePaths, victim: Path) -> None:
    shutil.rmtree(paths.code / "beta")
    (paths.code / "beta").symlink_to(victim / "beta")
    done = ok(stack.run("diff", "-w", paths.root))
    assert "precious" not in done.stdout
    assert "deleted file" in done.stdout


def test_a_command_with_too_little_memory_says_so(stack: Stack, paths: WorkspacePaths) -> None:
    """A receipt, whole and of 60 MB, in a process of 100."""
    body = " " * 60_000_000
    paths.stat.write_text(body)
    paths.receipt.write_text(paths.receipt.read_text() + body)
    done = limited_cli(["verify", "-w", paths.root], stack.env, memory=100_000_000)
    assert_told(done, "not enough memory", "ulimit -v", code=3)
