"""Local work in a workspace: found before anything is replaced, never lost."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from npu_rl.git import Git, GitError
from npu_rl.workspace import check
from npu_rl.workspace.check import Stat
from npu_rl.workspace.layout import Layout
from npu_rl.workspace.receipt import Receipt


@dataclass(frozen=True)
class Edits:
    """files: (root, path) that differ or are not ours. history: commits, branches or staged changes of the user's."""

    files: tuple[tuple[str, str], ...]
    history: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.files or self.history)

    def shown(self, limit: int = 20) -> str:
        """One line each, for a message."""
        lines = [f"{root}/{path}" for root, path in self.files] + list(self.history)
        more = [f"and {len(lines) - limit} more"] if len(lines) > limit else []
        return "\n".join(lines[:limit] + more)


def find_edits(
    home: Path, receipt: Receipt, known: Mapping[str, Mapping[str, Stat]], wanted: Mapping[str, Mapping[str, tuple[str, str]]]
) -> Edits:  # fmt: skip
    """What a person did under `home` (the workspace, or its old parts) since its setup.

    wanted: the files of the lock to come, by root; an edit it already contains is not one to save.
    A file that is missing holds nothing to lose.
    """
    files = []
    for root, expected in receipt.files.items():
        findings = check.examine(home / root, expected, known.get(root, {}))
        coming = wanted.get(root, {})
        for path in [*(d.path for d in findings.drift if d.kind != "missing"), *findings.products]:
            if "__pycache__/" in path and path.endswith(".pyc"):
                continue
            if path in coming and _content(home / root / path) == coming[path]:
                continue
            files.append((root, path))
    return Edits(tuple(sorted(files)), tuple(_history(home, receipt)))


def _content(path: Path) -> tuple[str, str] | None:
    try:
        return check.blob_on_disk(os.fspath(path), path.lstat())
    except OSError:
        return None


def _history(home: Path, receipt: Receipt) -> list[str]:
    found = []
    for root, commit in receipt.commits.items():
        repository = home / ".npu-rl" / "git" / _repository_name(root)
        if not (repository / "HEAD").is_file():
            continue
        for name, oid in _refs(repository).items():
            if oid != commit:
                found.append(f"{root}: {name} is at {oid[:12]}, a commit of your own")
        if _staged(repository, home / root, commit):
            found.append(f"{root}: changes staged with git add")
    return found


def _refs(repository: Path) -> dict[str, str]:
    """Every ref by name, read from files: no git process for a question asked on every setup."""
    refs = {}
    head = (repository / "HEAD").read_text().strip()
    if not head.startswith("ref: "):
        refs["HEAD"] = head
    packed = repository / "packed-refs"
    if packed.is_file():
        for line in packed.read_text().splitlines():
            if line and line[0] not in "#^":
                oid, _, name = line.partition(" ")
                refs[name] = oid
    for path in (repository / "refs").rglob("*"):
        if path.is_file() and not path.name.endswith(".lock"):
            refs[path.relative_to(repository).as_posix()] = path.read_text().strip()
    return refs


def _staged(repository: Path, work_tree: Path, commit: str) -> bool:
    index = repository / "index"
    if not index.is_file() or not work_tree.is_dir():
        return False
    here = Git(repository, work_tree=work_tree, index=index)
    try:
        done = here.run("diff-index", "--cached", "--name-only", "-z", commit, ok=(0, 1))
    except GitError:
        return False  # a damaged index holds nothing that could be saved
    names = [n.decode("utf-8", "surrogateescape") for n in done.stdout.split(b"\0") if n]
    # What is staged and also on disk is found as a file; deletions lose nothing.
    return any(not os.path.lexists(work_tree / name) for name in names) and bool(
        here.run("diff-index", "--cached", "--name-only", "--diff-filter=d", "-z", commit).stdout
    )


def _repository_name(root: str) -> str:
    return root.replace("/", "-")


def keep(layout: Layout, home: Path, edits: Edits) -> Path:
    """Move edits to `.npu-rl/kept/TIME` and return that folder."""
    target = _fresh(layout.kept)
    for root, path in edits.files:
        source = home / root / path.rstrip("/")
        place = target / root / path.rstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        source.rename(place)
    if edits.history:
        shutil.copytree(home / ".npu-rl" / "git", target / "git", symlinks=True)
    return target


def _fresh(folder: Path) -> Path:
    stamp = time.strftime("%Y-%m-%dT%H-%M-%S")
    for count in range(1000):
        target = folder / (stamp if not count else f"{stamp}.{count}")
        try:
            target.mkdir(parents=True)
            return target
        except FileExistsError:
            continue
    raise OSError(f"no free name in {folder}")
