"""Detection of local changes in a workspace before setup replaces anything."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.bounded import read_if_file
from npu_rl.common.disk import is_folder, move_new
from npu_rl.common.errors import WorkspaceError
from npu_rl.workspace.folder import file_check, laid_files
from npu_rl.workspace.folder.laid_files import examine_laid_root
from npu_rl.workspace.folder.receipt import FilesByRoot, Receipt, read_receipt
from npu_rl.workspace.folder.untracked_files import ExpectedTree, has_byte_code_name
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths, repository_name


@dataclass(frozen=True)
class Edits:
    """Local changes in a workspace.

    Attributes:
        files: Changed or untracked paths in the workspace; a folder ends in a slash.
        history: The user's commits, branches, stashes or staged changes, one line each.
        git_files: Hooks, settings and other files of the user's in git repositories, one line each.
    """

    files: tuple[str, ...]
    history: tuple[str, ...]
    git_files: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.files) + len(self.history) + len(self.git_files)

    def shown(self, limit: int = 20) -> str:
        """Return one line per change for a message, followed by the number of further changes."""
        lines = [*self.files, *self.history, *self.git_files]
        more = [f"and {len(lines) - limit} more"] if len(lines) > limit else []
        return "\n".join([*(_printable(line) for line in lines[:limit]), *more])


def find_edits(home: Path, wanted: FilesByRoot) -> Edits:
    """Find the user's changes under `home`, a workspace or its old parts.

    Args:
        wanted: The files of the new lock, by root; an identical change need not be saved. Missing files do not
            count. Without a readable receipt, all files count.
    """
    from npu_rl.workspace.folder.local_commits import own_files

    try:
        receipt = read_receipt(WorkspacePaths(home))
    except WorkspaceError as error:
        return _all_files(home, error)
    found = {*_files(home, receipt, wanted)}
    git_files = (line for root in receipt.commits for line in own_files(WorkspacePaths(home).git, root))
    return Edits(tuple(sorted(found)), tuple(own_work(home, receipt)), tuple(git_files))


def _files(home: Path, receipt: Receipt, wanted: FilesByRoot) -> Iterator[str]:
    known = file_check.read_stats(WorkspacePaths(home).stat, receipt.digest)
    yield from laid_files.local_work(home, receipt.files, receipt.setup)
    for root, expected in receipt.files.items():
        findings, _ = examine_laid_root(home, root, receipt, known.get(root, {}))
        coming, tree = wanted.get(root, {}), ExpectedTree(expected)
        for path in [*(d.path for d in findings.drift if d.kind != "missing"), *findings.ignored]:
            if has_byte_code_name(path, tree):
                continue
            if path.endswith("/") and not path.endswith(".git/") and _is_empty(home / root / path):
                continue
            if path in coming and _content(home / root / path) == coming[path]:
                continue
            yield f"{root}/{path}"


def _content(path: Path) -> tuple[str, str] | None:
    try:
        return file_check.blob_on_disk(os.fspath(path))
    except OSError:
        return None


def _is_empty(folder: Path) -> bool:
    try:
        return not any(folder.iterdir())
    except OSError:
        return False  # its path is too long to be read


def own_work(home: Path, receipt: Receipt) -> Iterator[str]:
    """Yield the user's commits, branches, stashes and staged changes in a workspace, one line each."""
    roots = {root: commit for root, commit in receipt.commits.items() if not _is_as_laid(home, root, commit)}
    if not roots:
        return  # a verify that finds none does not pay for the import of what runs git
    from npu_rl.workspace.folder.local_commits import own_history

    for root, commit in roots.items():
        yield from own_history(WorkspacePaths(home).git, root, commit)


def _is_as_laid(home: Path, root: str, commit: str) -> bool:
    """Return whether a root's repository has only the ref and objects from setup."""
    git = WorkspacePaths(home).git / repository_name(root)
    found = {path.relative_to(git).as_posix() for path in (*git.glob("refs/*/*"), *git.glob("objects/*/*"))}
    others = any(os.path.lexists(git / name) for name in ("packed-refs", "reftable", "refs/stash"))
    if others or found != {"refs/heads/main", "objects/info/alternates"}:
        return False
    return read_if_file(git / "refs/heads/main") == f"{commit}\n".encode()


def _all_files(home: Path, error: WorkspaceError) -> Edits:
    names = [name for name in ("code", "src", "activate") if os.path.lexists(home / name)]
    found = [f"{name}/" if is_folder(home / name) else name for name in names]
    history = [f"all of the git repositories ({error.what[0].lower()}{error.what[1:]})"]
    return Edits(tuple(found), tuple(history if WorkspacePaths(home).git.is_dir() else ()))


def _printable(line: str) -> str:
    """Escape a path that has line breaks or isn't valid text."""
    return line if line.isprintable() else ascii(line)[1:-1]


def move_edits(home: Path, edits: Edits, target: Path) -> None:
    """Move changes from the folder `home` of a workspace to another by renaming, without replacing files.

    An interrupted call can be repeated.
    """
    for path in edits.files:
        name = path.rstrip("/")
        folders = (home / folder for folder in Path(name).parents)
        if not any(
            folder.is_symlink() for folder in folders
        ):  # a link is an edit itself; what it leads to stays
            _move_aside(home / name, target, name)
    if edits.history or edits.git_files:  # the repositories as a whole
        _move_aside(WorkspacePaths(home).git, target, "git")


def _move_aside(source: Path, target: Path, name: str) -> None:
    """Move one path to the target, or to a numbered folder if the name is taken."""
    if not os.path.lexists(source):
        return None
    for count in range(1000):
        try:
            return move_new(source, target / f"again.{count}" / name if count else target / name)
        except (FileExistsError, NotADirectoryError):  # a file may be in place of a folder of the path
            continue
    raise WorkspaceError("Local changes can't be moved aside: 1000 names are taken", where=str(target / name))
