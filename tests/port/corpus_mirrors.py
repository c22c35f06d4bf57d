"""The upstreams of the corpus as `port_patch` sees them: bare repositories OWNER+NAME/repo, only read."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from npu_rl.stack.hunks.hunk_match import find_all, split_lines
from npu_rl.stack.patches.parse_patch import parse_patch
from npu_rl.stack.patches.patch_model import Patch
from tests.port.corpus import Case, PatchFile
from tests.support import clean_env


class UpstreamMirror:
    """One bare repository, with a `git cat-file` that stays."""

    def __init__(self, git_dir: Path, env: dict[str, str]) -> None:
        self._git_dir, self._env = git_dir, env

    def run(self, *args: str) -> bytes:
        """Run git and return its output."""
        command = ["git", "--git-dir", str(self._git_dir), *args]
        return subprocess.run(command, env=self._env, check=True, capture_output=True).stdout

    @cached_property
    def _objects(self) -> subprocess.Popen[bytes]:
        command = ["git", "--git-dir", str(self._git_dir), "cat-file", "--batch"]
        return subprocess.Popen(command, env=self._env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def read(self, commit: str, path: str) -> bytes | None:
        """Return a file of a commit; None if there is none."""
        asked, answers = self._objects.stdin, self._objects.stdout
        assert asked is not None and answers is not None
        asked.write(f"{commit}:{path}\n".encode())
        asked.flush()
        kind, size = answers.readline().split()[-2:]
        if size == b"missing":
            return None
        content = answers.read(int(size) + 1)[:-1]
        return content if kind == b"blob" else None

    def close(self) -> None:
        """End the process, if one was started."""
        if "_objects" in self.__dict__:
            self._objects.communicate()


class UpstreamMirrors:
    """The mirrors below a folder, opened when they are asked for. A context manager that closes them."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self._folder, self._env = folder, clean_env(scratch)
        self._open: dict[str, UpstreamMirror] = {}

    def __enter__(self) -> UpstreamMirrors:
        return self

    def __exit__(self, *_: object) -> None:
        for mirror in self._open.values():
            mirror.close()

    def of(self, repository: str) -> UpstreamMirror:
        """Return the mirror of OWNER/NAME."""
        if repository not in self._open:
            git_dir = self._folder / repository.replace("/", "+") / "repo"
            self._open[repository] = UpstreamMirror(git_dir, self._env)
        return self._open[repository]

    def patch_text(self, case: Case) -> tuple[bytes, int]:
        """Return the text of a case's patch and its `strip`."""
        patch = case.patch
        if isinstance(patch, PatchFile):
            text = self.of(patch.repository).read(patch.commit, patch.path)
            assert text is not None, f"{case.where}: {patch.path} is not in {patch.commit}"
            return text, patch.strip
        pair = (f"{patch.commit}^", patch.commit)
        options = ("--no-renames", "--full-index", "--no-ext-diff")
        return self.of(case.repository).run("diff", *options, *pair, "--", *patch.paths), 1

    def patch(self, case: Case) -> Patch:
        """Return the parsed patch of a case."""
        text, strip = self.patch_text(case)
        name = case.patch.path if isinstance(case.patch, PatchFile) else case.patch.commit
        return parse_patch(text, name=name, strip=strip)


@dataclass(frozen=True)
class MirrorVersion:
    """A version of a component, as `NewVersion`."""

    mirror: UpstreamMirror
    commit: str

    def read(self, path: str) -> bytes | None:
        """Return a file; None if there is none."""
        return self.mirror.read(self.commit, path)

    def obstacle(self, path: str) -> str:
        """Return nothing: every file of the corpus is a file or absent."""
        return ""

    def files(self) -> Iterable[str]:
        """Return the path of every file."""
        return _paths(self.mirror, self.commit)


@cache
def _paths(mirror: UpstreamMirror, commit: str) -> tuple[str, ...]:
    listing = mirror.run("ls-tree", "-r", "-z", "--name-only", commit)
    return tuple(listing.decode("utf-8", "surrogateescape").rstrip("\0").split("\0"))


@dataclass(frozen=True)
class MirrorHistory:
    """The commits between two versions, as `History`."""

    mirror: UpstreamMirror
    start: str
    to: str

    def deleted(self, path: str) -> str | None:
        """Return the commit that deleted or renamed a file."""
        args = ("log", "--full-history", "--no-renames", "--diff-filter=D", "--format=%H")
        ids = self.mirror.run(*args, f"{self.start}..{self.to}", "--", path).decode().split()
        return ids[0] if ids else None

    def renamed(self, path: str) -> str | None:
        """Return the path that a file was renamed to."""
        commit = self.deleted(path)
        if commit is None:
            return None
        args = ("diff", "-M", "--diff-filter=R", "--name-status", "-z", f"{commit}^", commit)
        fields = self.mirror.run(*args).decode("utf-8", "surrogateescape").split("\0")
        renames = dict(zip(fields[1::3], fields[2::3], strict=False))
        return renames.get(path)

    def added(
        self, path: str, new_lines: Sequence[bytes], old_lines: Sequence[bytes], inside: str | None = None
    ) -> str | None:
        """Return the first commit after which the new lines stand in a file and the old ones do not."""
        for commit, lines in self._versions(path):
            if find_all(lines, list(new_lines)) and not (old_lines and find_all(lines, list(old_lines))):
                return commit
        return None

    def lost(self, path: str, lines: Sequence[bytes], inside: str | None = None) -> str | None:
        """Return the first commit after which lines no longer stand in a file."""
        return next((c for c, found in self._versions(path) if not find_all(found, list(lines))), None)

    def _versions(self, path: str) -> Iterable[tuple[str, list[bytes]]]:
        args = ("log", "--reverse", "--topo-order", "--format=%H")
        for commit in self.mirror.run(*args, f"{self.start}..{self.to}", "--", path).decode().split():
            yield commit, split_lines(self.mirror.read(commit, path) or b"")
