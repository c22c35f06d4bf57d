"""Comparison of all that setup lays with the receipt: the trees, and the files that it creates outside them.

The latter are `activate`, each root's pointer to its git repository, and those repositories with their packs; `src`
must have nothing else. Of a repository only the parts are checked that users have no reason to change: git writes
their commits, branches and settings elsewhere. A copy without any git directory is valid; a partial one is not.
"""

from __future__ import annotations

import hashlib
import os
import stat as stat_module
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import NO_FILE, PACK_SEAL, open_file, pack_seal, read_file, read_if_file
from npu_rl.common.disk import is_folder
from npu_rl.common.errors import WorkspaceError
from npu_rl.stack.lock.lock_model import MAXIMUM_SIZE
from npu_rl.workspace.folder import file_check, swap
from npu_rl.workspace.folder.built_products import BUILT, built_products, state_on_disk
from npu_rl.workspace.folder.file_check import Advance, Difference, Findings, Stat, no_progress, stat_of
from npu_rl.workspace.folder.receipt import Receipt, read_receipt
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths, repository_name

ALTERNATES = "../../objects\n"
REPOSITORY_SETTINGS = (
    "\tautocrlf = false\n\thooksPath = /dev/null\n[gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n"
)
"""What setup adds to the configuration of each root's repository."""
PACKS = ".npu-rl/git/objects/pack"  # also the name of their part of the record of times
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


def activate_script(env: Mapping[str, str]) -> str:
    """Return the script `activate`, which sets PYTHONPATH, the manifest's variables, and bytecode and run folders."""
    import shlex

    from npu_rl.common import byte_code

    lines = [
        "# Source this file (bash or zsh): it puts this workspace's code on PYTHONPATH.",
        'if [ -n "${BASH_SOURCE:-}" ]; then _npu_rl_file="${BASH_SOURCE[0]}"',
        'elif [ -n "${ZSH_VERSION:-}" ]; then eval \'_npu_rl_file="${(%):-%x}"\'',
        'else _npu_rl_file="${NPU_RL_WORKSPACE:-.}/activate"; fi',
        'NPU_RL_WORKSPACE="$(CDPATH= cd -- "$(dirname -- "$_npu_rl_file")" && pwd)"; unset _npu_rl_file',
        "export NPU_RL_WORKSPACE",
        'case ":${PYTHONPATH:-}:" in *":$NPU_RL_WORKSPACE/code:"*) ;;',
        '*) export PYTHONPATH="$NPU_RL_WORKSPACE/code${PYTHONPATH:+:$PYTHONPATH}" ;; esac',
        "# Byte code could hide a change of its source, so none of the workspace's is read: this user's cache has it.",
        *byte_code.shell_lines(),
        'export NPU_RL_RUNS="${NPU_RL_RUNS:-$NPU_RL_WORKSPACE/runs}"',
    ]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
    return "\n".join(lines) + "\n"


def record(home: Path, script: str) -> dict[str, Any]:
    """Return the facts about these files for a receipt's `setup`.

    Args:
        home: The workspace.
        script: The text of `activate`.
    """
    packs = {path.name: [path.stat().st_size, _seal(path)] for path in sorted((home / PACKS).iterdir())}
    return {"activate": hashlib.sha256(script.encode()).hexdigest(), "packs": packs}


def pack_stats(home: Path) -> dict[str, Stat]:
    """Return the `stat` results of new packs, which were verified as units of the store."""
    return {path.name: stat_of(path.lstat()) for path in (home / PACKS).iterdir()}


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


def untouched(paths: WorkspacePaths, text: str, python: str | None = None) -> bool:
    """Return whether a setup from the lock `text` has nothing to do, including cleanup."""
    return not swap.leftovers(paths) and up_to_date(paths, text, python)


def up_to_date(paths: WorkspacePaths, text: str, python: str | None = None) -> bool:
    """Return whether the workspace was set up from exactly this lock and is unchanged.

    Args:
        python: The requested training interpreter; None accepts whatever the receipt has.
    """
    if paths.is_swapping or not paths.is_workspace:
        return False
    try:
        if read_if_file(paths.lock, MAXIMUM_SIZE) != text.encode():
            return False
        receipt = read_receipt(paths)
    except (WorkspaceError, OSError):
        return False  # damaged, or another setup is putting it in place: look again with the workspace held
    if python is not None and receipt.setup.get("python") != python:
        return False
    try:
        return _is_as_laid(paths, receipt)
    except FileNotFoundError:
        return False  # another setup takes it away


def _is_as_laid(paths: WorkspacePaths, receipt: Receipt) -> bool:
    known = file_check.read_stats(paths.stat, receipt.digest)
    around = check_laid_files(
        paths.root, receipt.files, receipt.setup, known.get(PACKS, {}), without_git=False
    )
    if around.drift:
        return False
    laid = (examine_laid_root(paths.root, root, receipt, known.get(root, {}))[0] for root in receipt.files)
    return not any(found.drift for found in laid)


def check_laid_files(
    home: Path,
    roots: Mapping[str, object],
    setup: Mapping[str, Any],
    known: Mapping[str, Stat],
    *,
    without_git: bool = True,
) -> LaidFilesReport:
    """Compare the files outside the trees with a receipt's roots and `setup`.

    Args:
        known: Earlier `stat` results of the packs; every byte of the others is read.
        without_git: Whether a copy without any git directory is valid.

    Raises:
        OSError: If a file can't be read.
    """
    found = LaidFilesReport()
    found.drift += [*_script(home, setup), *_untracked_in_src(home, roots)]
    has_git = os.path.lexists(home / ".npu-rl/git") or any(os.path.lexists(home / r / ".git") for r in roots)
    if has_git or not without_git:
        found.drift += [*_pointers(home, roots), *_repositories(home, roots, setup, known, found)]
    return found


def local_work(home: Path, roots: Mapping[str, object], setup: Mapping[str, Any]) -> Iterator[str]:
    """Yield paths outside the trees that the user created or changed and a setup would replace."""
    if _folder_kind(home / "src") == "type":
        yield "src/" if (home / "src").is_symlink() else "src"  # whatever a link leads to stays where it is
    for found in (*_script(home, setup), *_pointers(home, roots), *_untracked_in_src(home, roots)):
        if found.kind not in ("missing", "mode"):
            yield found.path


def _script(home: Path, setup: Mapping[str, Any]) -> Iterator[Difference]:
    script = home / "activate"
    kind = _file_kind(script, lambda data: hashlib.sha256(data).hexdigest() == setup.get("activate"))
    if kind is None and script.stat().st_mode & 0o100:
        kind = "mode"
    if kind:
        yield Difference("activate", kind)


def _pointers(home: Path, roots: Mapping[str, object]) -> Iterator[Difference]:
    for root in roots:
        place = home / root
        if place.parent.is_symlink() or not is_folder(place):
            continue  # the root itself is drift
        kind = _file_kind(place / ".git", pointer(root).encode().__eq__)
        if kind:
            yield Difference(f"{root}/.git" + _slash(place / ".git"), kind)


def _untracked_in_src(home: Path, roots: Mapping[str, object]) -> Iterator[Difference]:
    """Yield the entries of `src` that are not components. A link in place of `src` is reported as component drift."""
    ours = {root for root in roots if root.startswith("src/")}
    kind = _folder_kind(home / "src")
    if kind == "type" and not ours:
        yield Difference("src", "untracked")
    for path in () if kind else sorted((home / "src").iterdir()):
        if f"src/{path.name}" not in ours:
            yield Difference(f"src/{path.name}" + _slash(path), "untracked")


# -- git -----------------------------------------------------------------------------------------------


def _repositories(
    home: Path,
    roots: Mapping[str, object],
    setup: Mapping[str, Any],
    known: Mapping[str, Stat],
    found: LaidFilesReport,
) -> Iterator[Difference]:
    """Yield the differences in what git needs, and in what could redirect it to other objects."""
    shared = [*_folders(home, ".npu-rl/git", ".npu-rl/git/objects", PACKS)]
    yield from shared
    if shared:
        return
    packs = setup.get("packs")
    for name, recorded in sorted(packs.items()) if isinstance(packs, dict) else ():
        try:
            kind = _pack_kind(home / PACKS / Path(name).name, name, recorded, known.get(name), found)
        except (FileNotFoundError, ValueError):
            kind = "missing"
        if kind:
            yield Difference(f"{PACKS}/{name}", kind)
    for root in roots:
        place = f".npu-rl/git/{repository_name(root)}"
        folders = [*_folders(home, place, f"{place}/objects", f"{place}/refs")]
        yield from folders
        if folders:
            continue
        kind = _file_kind(home / place / "objects/info/alternates", ALTERNATES.encode().__eq__)
        if kind:
            yield Difference(f"{place}/objects/info/alternates", kind)
        for path in (f"{place}/{name}" for name in ("config", "HEAD", "index")):
            if (home / path).is_symlink() or not (home / path).is_file():
                yield Difference(path, "type" if os.path.lexists(home / path) else "missing")


def _folders(home: Path, *paths: str) -> Iterator[Difference]:
    """Yield the first of these paths that is not a folder."""
    for path in paths:
        kind = _folder_kind(home / path)
        if kind:
            yield Difference(path, kind)
            return


def _pack_kind(
    path: Path, name: str, recorded: object, before: Stat | None, found: LaidFilesReport
) -> str | None:
    """Return how a pack differs by its size and SHA-1, or None. Raises FileNotFoundError if it is missing.

    A pack is hard-linked to the store's, so its change time is useless: every other setup changes it.
    """
    now = stat_of(path.lstat())
    if not stat_module.S_ISREG(now[-1]):
        return "type"
    if not isinstance(before, list) or (before[:2], before[3:]) != (now[:2], now[3:]):
        found.read += 1
        same_size = isinstance(recorded, list) and recorded[:1] == [now[0]]
        seal = pack_seal(path) if same_size else None  # unread: a sparse terabyte takes half an hour
        if seal is None or recorded != [now[0], seal]:
            return "modified"
    found.stats[name] = now
    return None


# -- files ---------------------------------------------------------------------------------------------


def _file_kind(path: Path, is_right: Callable[[bytes], bool]) -> str | None:
    """Return how a small file differs, or None. Raises OSError if it can't be read."""
    try:
        if path.is_symlink():
            return "type"
        return None if is_right(read_file(path, _SMALL)) else "modified"
    except ValueError:
        return "modified"
    except OSError as error:
        if error.errno not in NO_FILE:
            raise
        return "type" if path.exists() else "missing"


def _folder_kind(path: Path) -> str | None:
    return None if is_folder(path) else "type" if os.path.lexists(path) else "missing"


def _slash(path: Path) -> str:
    return "/" if is_folder(path) else ""


def _seal(path: Path) -> str:
    with open_file(path) as file:
        file.seek(-PACK_SEAL, os.SEEK_END)
        return file.read().hex()
