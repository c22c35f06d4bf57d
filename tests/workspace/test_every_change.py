"""One table: a change to a workspace, what the quick and the deep look say of it, and what setup does then.

What may be untracked is in test_untracked_files.py.

"Quick" is told what it may rely on first: every file is recorded as proven, however young it is.
"""

# ruff: noqa: E501  a row of the table is a line

from __future__ import annotations

import contextlib
import os
import py_compile
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from npu_rl.common.errors import HostError, WorkspaceError
from npu_rl.workspace.folder import file_check, laid_files
from npu_rl.workspace.folder.laid_files import untouched
from npu_rl.workspace.folder.local_edits import find_edits
from npu_rl.workspace.folder.receipt import read_receipt
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from tests.support import assert_told, ok
from tests.workspace.stack import Stack, forge_file, found, git_in, look, record_as_proven

Make = Callable[[Path], object]
NOTHING, REPAIRS, REFUSES = "nothing to do", "lays it again", "local changes that setup would replace"


@dataclass(frozen=True)
class Change:
    """make: changes the workspace at a path. drift: what deep finds. quick: what quick finds, if that is another.

    listed: what is told of without being drift. setup: what it does without --discard.
    """

    name: str
    make: Make
    drift: tuple[tuple[str, str], ...] = ()
    setup: str = NOTHING
    listed: tuple[str, ...] = ()
    quick: tuple[tuple[str, str], ...] | None = None


def drift(name: str, make: Make, path: str, kind: str, setup: str = REFUSES) -> Change:
    return Change(name, make, ((path, kind),), setup)


def untracked(path: str, data: bytes = b"", setup: str = REFUSES) -> Change:
    return drift(f"untracked {path!r}", lambda w: put(w / path, data), path, "untracked", setup)


def listed(name: str, make: Make, *paths: str) -> Change:
    return Change(name, make, listed=paths)


def fine(name: str, make: Make) -> Change:
    return Change(name, make)


def unseen_by_quick(name: str, make: Make, path: str, kind: str, setup: str = NOTHING) -> Change:
    return Change(name, make, ((path, kind),), setup, quick=())


# -- how ------------------------------------------------------------------------------------------------


def put(path: Path, data: bytes = b"") -> None:
    os.makedirs(os.path.dirname(os.fsencode(path)), exist_ok=True)
    with open(os.fsencode(path), "wb") as file:
        file.write(data)


def append(path: Path, data: bytes = b"# more\n") -> None:
    path.write_bytes(path.read_bytes() + data)


def flip(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    if path.stat().st_nlink > 1:  # a pack is one file with the store's
        path.unlink()
    path.write_bytes(data)


@contextlib.contextmanager
def old_times(path: Path) -> Iterator[None]:
    before = path.stat()
    yield
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def edit_with_old_times(w: Path) -> None:
    with old_times(w / CORE):
        flip(w / CORE)


def moved_over(w: Path) -> None:
    shutil.copy2(w / CORE, w / "other")
    before = (w / CORE).stat()
    flip(w / "other")
    os.utime(w / "other", ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(w / "other", w / CORE)


def through_a_hard_link(w: Path) -> None:
    os.link(w / CORE, w / "other")
    append(w / "other")


def huge(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(10**12)


def replace_by(path: str, make: Callable[[Path], object]) -> Make:
    def change(w: Path) -> None:
        (w / path).rename(w / "elsewhere")
        make(w / path)

    return change


def link_to_itself_elsewhere(path: str) -> Make:
    def change(w: Path) -> None:
        (w / path).rename(w / "elsewhere")
        (w / path).symlink_to(w / "elsewhere")

    return change


def bind(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)  # a socket's path has 107 bytes at most
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


def same_content_new_file(w: Path) -> None:
    shutil.copy(w / CORE, w / "other")
    os.replace(w / "other", w / CORE)


def compiled(
    mode: str, change: Callable[[Path], object] = lambda made: None, source: str = "code/beta/b.py"
) -> Make:
    def make(w: Path) -> None:
        invalidation = py_compile.PycInvalidationMode[mode]
        made = Path(str(py_compile.compile(str(w / source), doraise=True, invalidation_mode=invalidation)))
        change(made.rename(made.with_name(made.name.replace(TAG, "cpython-311"))))

    return make


def cache_elsewhere(w: Path) -> None:
    compiled("TIMESTAMP")(w)
    (w / "code/beta/__pycache__").rename(w / "cache")
    (w / "code/beta/__pycache__").symlink_to(w / "cache")


def renamed(path: str, name: str) -> Make:
    return lambda w: (w / path).rename((w / path).with_name(name))


def git_says(*args: str) -> Make:
    def change(w: Path) -> None:
        (w.parent / "home").mkdir(exist_ok=True)
        env = {"PATH": os.environ["PATH"], "HOME": str(w.parent / "home")}
        git_in(w / "code", env, *args)

    return change


def a_pack(w: Path, suffix: str = ".pack") -> Path:
    return sorted((w / laid_files.PACKS).glob(f"*{suffix}"))[0]


def pack_flipped_with_old_times(w: Path) -> None:
    with old_times(a_pack(w)):
        flip(a_pack(w), 60)


def forged_record(w: Path) -> None:
    put(w / "code/beta/b.py", b"B = 2\n")
    record_as_proven(WorkspacePaths(w), "beta/b.py")


def without_git(w: Path) -> None:
    shutil.rmtree(w / ".npu-rl/git")
    for pointer in w.rglob(".git"):
        pointer.unlink()


def git_elsewhere(w: Path) -> None:
    (w / ".npu-rl/git").rename(w / "git")
    (w / ".npu-rl/git").symlink_to(w / "git")


CORE = "code/alpha/core.py"
TAG = f"cpython-{os.sys.version_info[0]}{os.sys.version_info[1]}"  # type: ignore[attr-defined]
PYC = "code/beta/__pycache__/b.cpython-311.pyc"
GIT = ".npu-rl/git/code"
GAMMA_TYPE = (("src/gamma", "type"), ("src/gamma/build.txt", "type"))
PACK = "(a pack)"  # its name stands in the receipt only

TABLE = (
    # content of a locked file
    drift("an edit that kept size and times", edit_with_old_times, CORE, "modified"),
    drift("another file moved over it with its times", moved_over, CORE, "modified"),
    drift("a line more", lambda w: append(w / CORE), CORE, "modified"),
    drift("a file of a terabyte", lambda w: os.truncate(w / CORE, 1 << 40), CORE, "modified"),
    drift("a file emptied", lambda w: os.truncate(w / CORE, 0), CORE, "modified"),
    drift("one bit of data", lambda w: flip(w / "code/alpha/data.bin"), "code/alpha/data.bin", "modified"),
    drift("written through a hard link", through_a_hard_link, CORE, "modified"),
    drift("a file of src", lambda w: append(w / "src/gamma/csrc/k.cpp"), "src/gamma/csrc/k.cpp", "modified"),
    drift("a link that leads elsewhere", replace_by("code/alpha/link.py", lambda p: p.symlink_to("same_a.py")), "code/alpha/link.py", "modified"),
    # what is gone
    drift("a file gone", lambda w: (w / CORE).unlink(), CORE, "missing", REPAIRS),
    drift("a folder gone", lambda w: shutil.rmtree(w / "code/alpha/deep"), "code/alpha/deep/er/leaf.py", "missing", REPAIRS),
    drift("a file of src gone", lambda w: (w / "src/gamma/build.txt").unlink(), "src/gamma/build.txt", "missing", REPAIRS),
    # mode and type
    drift("a mode more", lambda w: (w / CORE).chmod(0o744), CORE, "mode"),
    drift("a link to the same content", link_to_itself_elsewhere(CORE), CORE, "type"),
    drift("a folder in place of a file", replace_by(CORE, lambda p: p.mkdir()), CORE, "type"),
    Change(
        "a package in place of a file", replace_by(CORE, lambda p: put(p / "inside.py")),
        ((CORE, "type"), (f"{CORE}/inside.py", "untracked")), REFUSES,
    ),
    Change("a file in place of a root of src", replace_by("src/gamma", put), GAMMA_TYPE, REFUSES),
    drift("a link in place of code", link_to_itself_elsewhere("code"), "code", "type"),
    drift("a link in place of src", link_to_itself_elsewhere("src"), "src/gamma", "type"),
    drift("a link in place of a root of src", link_to_itself_elsewhere("src/gamma"), "src/gamma", "type"),
    Change(
        "a name in other case", renamed("code/beta/b.py", "B.py"),
        (("code/beta/B.py", "untracked"), ("code/beta/b.py", "missing")), REFUSES,
    ),
    Change(
        "a link in place of a folder", link_to_itself_elsewhere("code/beta"),
        (("code/beta", "untracked"), ("code/beta/__init__.py", "missing"), ("code/beta/b.py", "missing")), REFUSES,
    ),
    # what is not of the lock: test_untracked_files.py has all kinds
    untracked("code/alpha/core/__init__.py"),
    drift("an empty folder, which is a package", lambda w: (w / "code/torch_npu").mkdir(), "code/torch_npu/", "untracked", REPAIRS),
    drift("a package by a link", lambda w: (w / "code/other").symlink_to(w / "src"), "code/other", "untracked"),
    untracked("code/zz-1.0.DIST-INFO/METADATA", b"Name: zz\nVersion: 1.0\n"),
    # repositories
    drift("a repository inside", lambda w: put(w / "code/beta/.git/HEAD"), "code/beta/.git/", "untracked"),
    drift("a pointer to a repository inside", lambda w: put(w / "code/beta/.git"), "code/beta/.git", "untracked"),
    # byte code that nobody holds against a source
    drift("an unchecked hash", compiled("UNCHECKED_HASH"), PYC, "untracked", REPAIRS),
    drift("no source", compiled("TIMESTAMP", lambda p: p.rename(p.with_name("x.cpython-311.pyc"))), PYC.replace("/b.", "/x."), "untracked"),
    drift("byte code cut short", compiled("TIMESTAMP", lambda p: os.truncate(p, 15)), PYC, "untracked", REPAIRS),
    drift("byte code by a link", compiled("TIMESTAMP", lambda p: p.symlink_to(p.rename(p.parents[3] / "x"))), PYC, "untracked", REPAIRS),
    drift("a cache by a link", cache_elsewhere, "code/beta/__pycache__", "untracked"),
    drift("a source in a cache", lambda w: put(w / "code/beta/__pycache__/b.py"), "code/beta/__pycache__/b.py", "untracked"),
    # byte code that is not read by us, and that nobody can prove
    listed("byte code by time", compiled("TIMESTAMP"), PYC),
    listed("byte code by a checked hash", compiled("CHECKED_HASH"), PYC),
    listed("optimised byte code", compiled("TIMESTAMP", lambda p: p.rename(p.with_name("b.cpython-311.opt-1.pyc"))), PYC.replace(".pyc", ".opt-1.pyc")),
    listed("byte code of a test's", compiled("TIMESTAMP", lambda p: p.rename(p.with_name("b.cpython-311-pytest-8.3.4.pyc"))), PYC.replace(".pyc", "-pytest-8.3.4.pyc")),
    listed("unfinished byte code", compiled("TIMESTAMP", lambda p: p.rename(f"{p}.140234")), f"{PYC}.140234"),
    # files that nothing reads
    listed("a log in a package", lambda w: put(w / "code/alpha/out.log"), "code/alpha/out.log"),
    listed("an editor's settings", lambda w: put(w / "code/.vscode/settings.json"), "code/.vscode/settings.json"),
    # activate
    drift("activate edited", lambda w: append(w / "activate", b"export LD_PRELOAD=/x.so\n"), "activate", "modified"),
    drift("activate emptied", lambda w: os.truncate(w / "activate", 0), "activate", "modified"),
    drift("activate gone", lambda w: (w / "activate").unlink(), "activate", "missing", REPAIRS),
    drift("activate a program", lambda w: (w / "activate").chmod(0o755), "activate", "mode", REPAIRS),
    drift("activate by a link", link_to_itself_elsewhere("activate"), "activate", "type"),
    drift("a folder in place of activate", replace_by("activate", lambda p: p.mkdir()), "activate", "type"),
    drift("a pipe in place of activate", replace_by("activate", os.mkfifo), "activate", "type"),
    # pointers and strangers
    drift("another pointer", lambda w: put(w / "code/.git", b"gitdir: /elsewhere\n"), "code/.git", "modified"),
    drift("no pointer", lambda w: (w / "code/.git").unlink(), "code/.git", "missing", REPAIRS),
    drift("a pointer by a link", link_to_itself_elsewhere("code/.git"), "code/.git", "type"),
    drift("a repository in its place", replace_by("code/.git", lambda p: put(p / "HEAD")), "code/.git/", "type"),
    drift("an empty folder in its place", replace_by("code/.git", lambda p: p.mkdir()), "code/.git/", "type"),
    drift("another pointer in src", lambda w: append(w / "src/gamma/.git"), "src/gamma/.git", "modified"),
    drift("a folder beside ours in src", lambda w: put(w / "src/evil/evil.py"), "src/evil/", "untracked"),
    drift("an empty folder in src", lambda w: (w / "src/evil").mkdir(), "src/evil/", "untracked"),
    drift("a file in src", lambda w: put(w / "src/evil.py"), "src/evil.py", "untracked"),
    drift("a link in src", lambda w: (w / "src/evil").symlink_to("gamma"), "src/evil", "untracked"),
    # git
    drift("no git", lambda w: shutil.rmtree(w / ".npu-rl/git"), ".npu-rl/git", "missing", REPAIRS),
    drift("git elsewhere", git_elsewhere, ".npu-rl/git", "type", REPAIRS),
    drift("no objects", lambda w: shutil.rmtree(w / ".npu-rl/git/objects"), ".npu-rl/git/objects", "missing", REPAIRS),
    drift("no packs", lambda w: shutil.rmtree(w / laid_files.PACKS), laid_files.PACKS, "missing", REPAIRS),
    drift("a pack gone", lambda w: a_pack(w).unlink(), PACK, "missing", REPAIRS),
    drift("an index of a pack gone", lambda w: a_pack(w, ".idx").unlink(), PACK, "missing", REPAIRS),
    drift("a pack cut short", lambda w: put(replaced(a_pack(w)), b"PACK"), PACK, "modified", REPAIRS),
    drift("a pack of a terabyte", lambda w: huge(replaced(a_pack(w))), PACK, "modified", REPAIRS),
    drift("a bit of a pack", lambda w: flip(a_pack(w), 60), PACK, "modified", REPAIRS),
    drift("the seal of a pack", lambda w: flip(a_pack(w)), PACK, "modified", REPAIRS),
    drift("a folder in place of a pack", lambda w: replaced(a_pack(w)).mkdir(), PACK, "type", REPAIRS),
    drift("no repository", lambda w: shutil.rmtree(w / GIT), GIT, "missing", REPAIRS),
    drift("no HEAD", lambda w: (w / GIT / "HEAD").unlink(), f"{GIT}/HEAD", "missing", REPAIRS),
    drift("no configuration", lambda w: (w / GIT / "config").unlink(), f"{GIT}/config", "missing", REPAIRS),
    drift("no index", lambda w: (w / GIT / "index").unlink(), f"{GIT}/index", "missing", REPAIRS),
    drift("other objects", lambda w: put(w / GIT / "objects/info/alternates", b"/elsewhere\n"), f"{GIT}/objects/info/alternates", "modified", REPAIRS),
    drift("no objects lent", lambda w: (w / GIT / "objects/info/alternates").unlink(), f"{GIT}/objects/info/alternates", "missing", REPAIRS),
    drift("no refs", lambda w: shutil.rmtree(w / GIT / "refs"), f"{GIT}/refs", "missing"),
    # what the quick look is documented not to see: everything that it compares, forged
    unseen_by_quick("a forged record of times", forged_record, "code/beta/b.py", "modified"),
    unseen_by_quick("a bit of a pack, with its old times", pack_flipped_with_old_times, PACK, "modified"),
    # no change
    fine("touched", lambda w: os.utime(w / CORE)),
    fine("a copy in its place", same_content_new_file),
    fine("no record of times", lambda w: (w / ".npu-rl/stat.json").unlink()),
    fine("files beside", lambda w: put(w / "notes/x.py")),
    fine("a person's settings", git_says("config", "user.name", 'Me "and" you')),
    fine("a branch of a person's", git_says("branch", "mine")),
    fine("an excluded name", lambda w: put(w / GIT / "info/exclude", b"*\n")),
    Change("a copy without git", without_git, setup=REPAIRS),
)  # fmt: skip


def replaced(path: Path) -> Path:
    path.unlink()
    return path


# -- the table -----------------------------------------------------------------------------------------


def record_all(paths: WorkspacePaths) -> None:
    """As if every file had been proven long ago."""
    receipt = read_receipt(paths)
    stats = {
        root: file_check.examine_root(paths.root, root, files, {}).stats
        for root, files in receipt.files.items()
    }
    stats[laid_files.PACKS] = laid_files.pack_stats(paths.root)
    text = file_check.dump_stats(stats, 2**62, receipt.digest)
    paths.stat.write_bytes(text.encode("utf-8", "surrogateescape"))


def setup_would(paths: WorkspacePaths) -> str:
    if untouched(paths, paths.lock.read_text(encoding="utf-8")):
        return NOTHING
    return REFUSES if find_edits(paths.root, read_receipt(paths).files) else REPAIRS


def as_in_the_table(drift: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """A file that several hunks are missing from is there once."""
    shown = ((PACK if path.startswith(f"{laid_files.PACKS}/") else path, kind) for path, kind in drift)
    return tuple(dict.fromkeys(shown))


@pytest.mark.parametrize("change", TABLE, ids=lambda change: ascii(change.name).strip("'"))
def test_every_change(paths: WorkspacePaths, change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(paths.root.parent))
    record_all(paths)
    change.make(paths.root)
    quick = look(paths)
    assert as_in_the_table([(d.path, d.kind) for d in quick.drift]) == (
        change.drift if change.quick is None else change.quick
    )
    assert (*quick.ignored, *quick.byte_code) == change.listed
    assert setup_would(paths) == change.setup
    deep = look(paths, deep=True)
    assert as_in_the_table([(d.path, d.kind) for d in deep.drift]) == change.drift
    assert (*deep.ignored, *deep.byte_code) == change.listed


@pytest.mark.parametrize(
    "name", ["activate a program", "no git", "a bit of a pack", "an unchecked hash", "git elsewhere"]
)
def test_setup_lays_again(stack: Stack, paths: WorkspacePaths, name: str) -> None:
    next(change for change in TABLE if change.name == name).make(paths.root)
    assert "is ready" in ok(stack.lay(paths.root)).stdout
    assert not paths.kept.exists()
    assert found(paths, deep=True) == []
    assert git_in(paths.code, stack.env, "fsck", "--no-dangling") == ""
    assert git_in(paths.code, stack.env, "status", "--porcelain") == ""


@pytest.mark.parametrize("damage", ["no HEAD", "a bit of a pack", "no refs"])
def test_commits_in_a_damaged_repository_are_never_lost(
    stack: Stack, paths: WorkspacePaths, damage: str
) -> None:
    put(paths.code / "beta/b.py", b"B = 'mine'\n")
    git_in(paths.code, stack.env, "commit", "-qam", "mine")
    put(paths.code / "beta/b.py", b"B = 1\n")
    own = {p.name for p in (paths.git / "code/objects").rglob("*") if p.is_file()}
    next(change for change in TABLE if change.name == damage).make(paths.root)
    assert_told(stack.lay(paths.root), "code: ", code=3)
    assert stack.lay(paths.root, None, "--discard").returncode == 0
    (folder,) = paths.kept.iterdir()
    assert {p.name for p in (folder / "git/code/objects").rglob("*") if p.is_file()} == own
    assert found(paths, deep=True) == []


def test_a_forged_receipt_and_record_are_found_by_deep(paths: WorkspacePaths) -> None:
    """Quick believes them together, as documented."""
    forge_file(paths, "beta/b.py", b"B = 666\n")
    for deep in (False, True):
        with pytest.raises(WorkspaceError, match="does not describe the locked tree of code"):
            look(paths, deep=deep)
    record_all(paths)
    assert found(paths) == []
    with pytest.raises(WorkspaceError, match="does not describe the locked tree of code"):
        look(paths, deep=True)


@pytest.mark.skipif(os.getuid() != 0, reason="needs another user to become")
@pytest.mark.parametrize("name", [CORE, "code/alpha/deep", "activate", "code/.git", GIT, "src"])
def test_what_nobody_may_read_is_an_error_and_not_a_pass(paths: WorkspacePaths, name: str) -> None:
    for folder in (paths.root.parent, *paths.root.parent.parents):
        if folder.stat().st_uid == 0 and "pytest" in str(folder):
            folder.chmod(0o755)
    (paths.root / name).chmod(0)
    os.seteuid(65534)
    try:
        for deep in (False, True):
            with pytest.raises(HostError, match="No permission"):
                look(paths, deep=deep)
    finally:
        os.seteuid(0)
