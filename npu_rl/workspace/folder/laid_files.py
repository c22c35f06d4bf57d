"""Files that setup creates outside the trees, and their checks.

These are `activate`, each root's pointer to its git repository, and those repositories with their packs; `src` must
have nothing else. Of a repository only the parts are checked that users have no reason to change: git writes their
commits, branches and settings elsewhere. A copy without any git directory is valid; a partial one is not.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat as stat_module
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import open_file
from npu_rl.workspace.folder.file_check import OPEN_FLAGS, Difference, Stat, is_folder, stat_of
from npu_rl.workspace.folder.workspace_paths import repository_name

ALTERNATES = "../../objects\n"
REPOSITORY_SETTINGS = (
    "\tautocrlf = false\n\thooksPath = /dev/null\n[gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n"
)
"""What setup adds to the configuration of each root's repository."""
PACKS = ".npu-rl/git/objects/pack"  # also the name of their part of the record of times
_SEAL = 20  # bytes of the SHA-1 at the end of a pack or an index of git's
_CHUNK = 1 << 17
_SMALL = 1 << 20


class LaidFilesReport:
    """Drift in these files, `stat` results of intact packs for the next check, and the number of packs read."""

    def __init__(self) -> None:
        self.drift: list[Difference] = []
        self.stats: dict[str, Stat] = {}
        self.read = 0


def pointer(root: str) -> str:
    """Return the text of `ROOT/.git`, with a relative path, so that the workspace can be moved."""
    return f"gitdir: {'../' * (root.count('/') + 1)}.npu-rl/git/{repository_name(root)}\n"


def record(home: Path, script: str) -> dict[str, Any]:
    """Return the facts about these files for a receipt's `setup`.

    Args:
        home: The workspace.
        script: The text of `activate`.
    """
    packs = {path.name: [path.stat().st_size, _seal(path).hex()] for path in sorted((home / PACKS).iterdir())}
    return {"activate": hashlib.sha256(script.encode()).hexdigest(), "packs": packs}


def pack_stats(home: Path) -> dict[str, Stat]:
    """Return the `stat` results of new packs, which were verified as units of the store."""
    return {path.name: stat_of(path.lstat()) for path in (home / PACKS).iterdir()}


def check_laid_files(
    home: Path,
    roots: Mapping[str, object],
    setup: Mapping[str, Any],
    known: Mapping[str, Stat],
    *,
    without_git: bool = True,
) -> LaidFilesReport:
    """Compare the files with a receipt's roots and `setup`.

    Args:
        known: Earlier `stat` results of the packs; every byte of the others is read.
        without_git: Whether a copy without any git directory is valid.

    Raises:
        OSError: If a file can't be read.
    """
    found = LaidFilesReport()
    found.drift += _script(home, setup)
    found.drift += _untracked_in_src(home, roots)
    has_git = os.path.lexists(home / ".npu-rl/git") or any(os.path.lexists(home / r / ".git") for r in roots)
    if has_git or not without_git:
        found.drift += _pointers(home, roots)
        _repositories(home, roots, setup, known, found)
    return found


def local_work(home: Path, roots: Mapping[str, object], setup: Mapping[str, Any]) -> Iterator[str]:
    """Yield paths outside the trees that the user created or changed and a setup would replace."""
    if (home / "src").is_symlink():
        yield "src/"  # whatever it leads to stays where it is
    elif _folder_kind(home / "src") == "type":
        yield "src"
    for found in (*_script(home, setup), *_pointers(home, roots), *_untracked_in_src(home, roots)):
        if found.kind not in ("missing", "mode"):
            yield found.path


def _script(home: Path, setup: Mapping[str, Any]) -> Iterator[Difference]:
    kind, data = _small_file(home / "activate")
    if kind is None and hashlib.sha256(data).hexdigest() != setup.get("activate"):
        kind = "modified"
    if kind is None and (home / "activate").lstat().st_mode & 0o100:
        kind = "mode"
    if kind:
        yield Difference("activate", kind)


def _pointers(home: Path, roots: Mapping[str, object]) -> Iterator[Difference]:
    for root in roots:
        if (home / root).is_symlink() or (home / root).parent.is_symlink() or not (home / root).is_dir():
            continue  # the root itself is drift
        kind, data = _small_file(home / root / ".git")
        if kind is None and data != pointer(root).encode():
            kind = "modified"
        if kind:
            yield Difference(f"{root}/.git" + _slash(home / root / ".git"), kind)


def _untracked_in_src(home: Path, roots: Mapping[str, object]) -> Iterator[Difference]:
    """Yield the entries of `src` that are not components. A link in place of `src` is reported as component drift."""
    ours = {root for root in roots if root.startswith("src/")}
    kind = _folder_kind(home / "src")
    if kind:
        if kind == "type" and not ours:
            yield Difference("src", "untracked")
        return
    for entry in sorted(os.scandir(home / "src"), key=lambda entry: entry.name):
        if f"src/{entry.name}" not in ours:
            yield Difference(f"src/{entry.name}" + _slash(Path(entry.path)), "untracked")


def is_from_older_version(setup: Mapping[str, Any]) -> bool:
    """Return whether an older npu-rl created the workspace; its `activate` put bytecode in `.npu-rl/pycache`."""
    return "packs" not in setup


def older_byte_code(home: Path, setup: Mapping[str, Any]) -> list[str]:
    """Return the bytecode folder of an older `activate`, if it contains files."""
    if is_from_older_version(setup):
        with contextlib.suppress(OSError):
            if any(os.scandir(home / ".npu-rl/pycache")):
                return [".npu-rl/pycache/"]
    return []


# -- git -----------------------------------------------------------------------------------------------


def _repositories(
    home: Path,
    roots: Mapping[str, object],
    setup: Mapping[str, Any],
    known: Mapping[str, Stat],
    found: LaidFilesReport,
) -> None:
    for folder in (".npu-rl/git", ".npu-rl/git/objects", PACKS):
        kind = _folder_kind(home / folder)
        if kind:
            found.drift.append(Difference(folder, kind))
            return
    _packs(home / PACKS, setup, known, found)
    for root in roots:
        place = f".npu-rl/git/{repository_name(root)}"
        found.drift += [Difference(f"{place}{path}", kind) for path, kind in _repository(home / place)]


def _packs(folder: Path, setup: Mapping[str, Any], known: Mapping[str, Stat], found: LaidFilesReport) -> None:
    """Check packs by size and SHA-1 trailer.

    A pack is hard-linked to the store's, so its change time is useless: every other setup changes it.
    """
    laid = setup.get("packs")
    for name, recorded in sorted(laid.items()) if isinstance(laid, dict) else ():
        try:
            kind = _pack(folder / Path(name).name, name, recorded, known.get(name), found)
        except (FileNotFoundError, ValueError):
            kind = "missing"
        if kind:
            found.drift.append(Difference(f"{PACKS}/{name}", kind))


def _pack(path: Path, name: str, recorded: object, before: Stat | None, found: LaidFilesReport) -> str | None:
    """Return how a pack differs, or None. Raises FileNotFoundError if it is missing."""
    status = path.lstat()
    now = stat_of(status)
    if not stat_module.S_ISREG(status.st_mode):
        return "type"
    if not _is_unchanged(before, now):
        found.read += 1
        size, seal = recorded if isinstance(recorded, list) and len(recorded) == 2 else (None, None)
        if status.st_size != size or _proven_seal(path) != seal:
            return "modified"
    found.stats[name] = now
    return None


def _is_unchanged(before: Stat | None, now: Stat) -> bool:
    return isinstance(before, list) and (before[:2], before[3:]) == (now[:2], now[3:])


def _repository(place: Path) -> Iterator[tuple[str, str]]:
    """Yield the differences (path, kind) in files that git needs or that could redirect git to other objects."""
    for folder in ("", "/objects", "/refs"):
        kind = _folder_kind(Path(f"{place}{folder}"))
        if kind:
            yield folder, kind
            return
    checks: dict[str, Callable[[bytes], bool]] = {
        "objects/info/alternates": ALTERNATES.encode().__eq__,
        "config": _is_configuration,
        "HEAD": partial(_names_a_commit, place),
    }
    for path, is_usable in checks.items():
        kind, data = _small_file(place / path)
        if kind or not is_usable(data):
            yield f"/{path}", kind or "modified"
    try:
        if not stat_module.S_ISREG((place / "index").lstat().st_mode):
            yield "/index", "type"
    except FileNotFoundError:
        yield "/index", "missing"


def _names_a_commit(place: Path, head: bytes) -> bool:
    if not head.startswith(b"ref: refs/"):
        return _is_object(head)
    name = os.fsdecode(head[len(b"ref: ") :].strip())
    if (place / "reftable").is_dir():
        return True
    if ".." in name.split("/"):
        return False
    kind, data = _small_file(place / name)
    if kind is None:
        return _is_object(data)
    kind, data = _small_file(place / "packed-refs", limit=64 * _SMALL)
    return kind is None and f" {name}\n".encode("utf-8", "surrogateescape") in data


def _is_object(data: bytes) -> bool:
    name = data.strip()
    return len(name) in (40, 64) and not name.strip(b"0123456789abcdef")


def _is_configuration(data: bytes) -> bool:
    """Return whether git can probably read the file, which may contain the user's own settings."""
    text = data.decode("utf-8", "surrogateescape")
    lines = [line.strip() for line in text.replace("\\\n", "").splitlines()]
    return "[" in text and "\0" not in text and all(_is_setting(line) for line in lines if line)


def _is_setting(line: str) -> bool:
    return line[0] in "#;" or line[0].isalpha() or (line[0] == "[" and "]" in line)


# -- files ---------------------------------------------------------------------------------------------


def _small_file(path: Path, limit: int = _SMALL) -> tuple[str | None, bytes]:
    """Return (None, content) for a regular file within the limit, or the kind of difference."""
    try:
        handle = os.open(path, OPEN_FLAGS)
    except FileNotFoundError:
        return ("type" if path.is_symlink() else "missing"), b""
    except NotADirectoryError:
        return "missing", b""
    except OSError:
        if stat_module.S_ISREG(path.lstat().st_mode):
            raise
        return "type", b""
    try:
        if not stat_module.S_ISREG(os.fstat(handle).st_mode):
            return "type", b""
        data = os.read(handle, limit)
        return ("modified" if len(data) == limit else None), data
    finally:
        os.close(handle)


def _folder_kind(path: Path) -> str | None:
    try:
        return None if stat_module.S_ISDIR(path.lstat().st_mode) else "type"
    except (FileNotFoundError, NotADirectoryError):
        return "missing"


def _slash(path: Path) -> str:
    return "/" if is_folder(path) else ""


def _seal(path: Path) -> bytes:
    with open_file(path) as file:
        file.seek(-_SEAL, os.SEEK_END)
        return file.read()


def _proven_seal(path: Path) -> str:
    """Return the SHA-1 trailer of a pack if it matches the content before it, else ""."""
    digest = hashlib.sha1(usedforsecurity=False)
    handle = os.open(path, OPEN_FLAGS)
    try:
        remaining = os.fstat(handle).st_size - _SEAL
        while remaining > 0 and (chunk := os.read(handle, min(_CHUNK, remaining))):
            digest.update(chunk)
            remaining -= len(chunk)
        seal = os.read(handle, _SEAL + 1)
    finally:
        os.close(handle)
    return seal.hex() if seal == digest.digest() else ""
