"""The repository of a port: a plain one, in which the user resolves conflicts with their own git.

Its configuration decides alone, whatever the user's own says: a rebase must give the same commits for everybody, and
run no program.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.disk import disk_errors
from npu_rl.stack.git.command import Git, init_bare
from npu_rl.stack.git.commits import AUTHOR, create_commit
from npu_rl.stack.git.environment import LOCAL_SETTINGS
from npu_rl.stack.git.messages import GitError
from npu_rl.stack.patches.patch_header import parse_header
from npu_rl.stack.port.both_versions import BothVersions
from npu_rl.stack.store import Store

OLD, PATCHES, NEW, BRANCH = "refs/npu-rl/old", "refs/npu-rl/patches", "refs/npu-rl/new", "refs/heads/port"

_SETTINGS = {
    **{key: value for key, value in LOCAL_SETTINGS.items() if key != "core.fsync"},
    "core.editor": "true",
    "core.sparseCheckout": "false",
    "user.name": AUTHOR[0],
    "user.email": AUTHOR[1],
    "commit.cleanup": "whitespace",
    "commit.template": os.devnull,
    "i18n.commitEncoding": "UTF-8",
    "diff.renames": "true",
    "merge.default": "text",  # with `!merge` in info/attributes, no driver of the user's
    "merge.renames": "true",
    "merge.directoryRenames": "conflict",
    "merge.renormalize": "false",
    "rebase.backend": "merge",
    "rebase.autoSquash": "false",
    "rebase.autoStash": "false",
    "rebase.updateRefs": "false",
    "sequence.editor": "true",  # also for `rebase -i --autosquash`
    "rerere.enabled": "true",
    "rerere.autoUpdate": "true",
}


@dataclass(frozen=True)
class PortRepository:
    """A port's folder. Methods raise GitError, HostError."""

    folder: Path

    @property
    def git_dir(self) -> Path:
        """The folder of git's own files."""
        return self.folder / ".git"

    @property
    def git(self) -> Git:
        """The repository with its work tree."""
        return Git(self.git_dir, self.folder)

    @property
    def is_stopped(self) -> bool:
        """Return whether a rebase has stopped."""
        return any((self.git_dir / name).is_dir() for name in ("rebase-merge", "rebase-apply"))

    def create(self, both: BothVersions, memory: Path) -> None:
        """Write both versions and the patches as commits, with all their objects.

        Args:
            memory: The folder where git remembers resolutions.
        """
        with disk_errors(self.folder):
            init_bare(self.git_dir, bare=False, settings=_SETTINGS)
            memory.mkdir(exist_ok=True)
            (self.git_dir / "rr-cache").symlink_to(memory.absolute())
        lender = both.trees.repository
        git = Git(self.git_dir, self.folder, alternates=(lender.git_dir / "objects", *lender.alternates))
        tip = create_commit(git, both.old, "old version\n")
        git.run("update-ref", OLD, tip)
        for number, patch in enumerate(both.patches, 1):
            header = patch.header.decode("utf-8", "surrogateescape")
            message = f"{parse_header(header).subject or patch.name}\n\n{header}"
            tip = create_commit(git, patch.after, message, [tip], number=number)
        git.run("update-ref", PATCHES, tip)
        git.run("update-ref", BRANCH, tip)
        git.run("update-ref", NEW, create_commit(git, both.new, "new version\n"))
        git.run("repack", "-a", "-d", "-q")  # with the objects of the lender
        self.git.run("symbolic-ref", "HEAD", BRANCH)
        self.git.run("reset", "--hard", "-q")

    def rebase(self, most: int) -> None:
        """Rebase the patches onto the new version, until it has ended or stops for the user.

        Args:
            most: The number of patches, each of which may stop.
        """
        words: tuple[str, ...] = ("rebase", "--onto", NEW, OLD)
        for _ in range(most + 1):
            done = self.git.run(*words, ok=(0, 1))
            if done.code and not self.is_stopped:
                raise GitError(words, done.code, done.stderr)
            if not done.code or self.conflicts():
                break
            words = ("rebase", "--continue")  # an earlier port has taught git how to resolve it

    def conflicts(self) -> list[str]:
        """Return the files with conflicts."""
        listed = self.git.lines("ls-files", "--unmerged", "-z")
        paths = (line.partition(b"\t")[2].decode("utf-8", "surrogateescape") for line in listed)
        return list(dict.fromkeys(paths))

    def commit_of(self, ref: str) -> str:
        """Return the commit of a ref, such as REBASE_HEAD; "" if it is missing."""
        return self.git.run("rev-parse", "--verify", "--quiet", ref, ok=(0, 1)).text()

    def other_refs(self) -> list[str]:
        """Return the refs that npu-rl did not write, such as a branch or a stash of the user."""
        found = self.git.text("for-each-ref", "--format=%(refname)").split()
        return sorted({*found} - {OLD, PATCHES, NEW, BRANCH})

    @contextmanager
    def viewed(self, store: Store) -> Iterator[Git]:
        """Provide the objects and files through a repository of npu-rl's own, whose configuration decides."""
        with store.quarantine() as folder:
            shutil.copy(self.git_dir / "index", folder / "index")
            (folder / "HEAD").write_text(f"{self.commit_of(BRANCH)}\n")
            yield Git(folder, self.folder, folder / "index", (self.git_dir / "objects",))


def uncommitted(view: Git) -> list[str]:
    """Return the files that differ from the branch, except byte code."""
    listed = view.lines("status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--ignored")
    paths = (line[3:].decode("utf-8", "surrogateescape") for line in listed)
    return [path for path in paths if "__pycache__/" not in path and not path.endswith(".pyc")]
