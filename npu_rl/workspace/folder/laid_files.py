"""Comparison of all that setup lays with the receipt: the trees, and the files that it creates outside them.

The latter are `activate`, each root's pointer to its git repository, and those repositories with their packs; `src`
must have nothing else. Of a repository only the parts are checked that users have no reason to change: git writes
their commits, branches and settings elsewhere. A copy without any git directory is valid; a partial one is not.
"""

from __future__ import annotations

import hashlib
import os
import stat as stat_module
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import NO_FILE, open_file, read_file
from npu_rl.common.disk import is_folder
from npu_rl.workspace.folder import file_check
from npu_rl.workspace.folder.built_products import BUILT, built_products, state_on_disk
from npu_rl.workspace.folder.file_check import Advance, Difference, Findings, Stat, no_progress, stat_of
from npu_rl.workspace.folder.receipt import Receipt
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
    """Yield the differences (path, kind) in what git needs, and in what could redirect it to other objects."""
    for folder in ("", "/objects", "/refs"):
        kind = _folder_kind(Path(f"{place}{folder}"))
        if kind:
            yield folder, kind
            return
    kind, data = _small_file(place / "objects/info/alternates")
    if kind or data != ALTERNATES.encode():
        yield "/objects/info/alternates", kind or "modified"
    for name in ("config", "HEAD", "index"):
        path = place / name
        if path.is_symlink() or not path.is_file():
            yield f"/{name}", "type" if os.path.lexists(path) else "missing"


# -- files ---------------------------------------------------------------------------------------------


def _small_file(path: Path) -> tuple[str | None, bytes]:
    """Return (None, content) for a regular file, or the kind of difference. Raises OSError if it can't be read."""
    if path.is_symlink():
        return "type", b""
    try:
        return None, read_file(path, _SMALL)
    except ValueError:
        return "modified", b""
    except OSError as error:
        if error.errno not in NO_FILE:
            raise
        return ("type" if path.exists() else "missing"), b""


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
    with open_file(path) as file:
        left = os.fstat(file.fileno()).st_size - _SEAL
        while left > 0 and (chunk := file.read(min(_CHUNK, left))):
            digest.update(chunk)
            left -= len(chunk)
        seal = file.read(_SEAL + 1)
    return seal.hex() if seal == digest.digest() else ""


def examine_laid_root(
    home: Path, root: str, receipt: Receipt, known: Mapping[str, Stat], advance: Advance = no_progress
) -> tuple[Findings, dict[str, str]]:
    """Compare a root like `file_check.examine_root`, including the products that the receipt lists.

    Returns:
        The findings, in which a product as it was built is not drift and another is modified or missing, and the
        state of each product by its path in the workspace. Every byte of a product is read.
    """
    found = file_check.examine_root(home, root, receipt.files[root], known, advance)
    products = [one for one in built_products(receipt.setup).values() if one.root == root]
    if not products:
        return found, {}
    states = {product.path: state_on_disk(home, product) for product in products}
    ours = {product.path_in_root for product in products}
    found.drift = [one for one in found.drift if one.path not in ours]
    found.ignored = {path: what for path, what in found.ignored.items() if path not in ours}
    found.drift += [
        Difference(product.path_in_root, states[product.path])
        for product in products
        if states[product.path] != BUILT
    ]
    found.drift.sort(key=lambda difference: difference.path)
    return found, states
