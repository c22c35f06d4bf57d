"""The commits between two versions of a component, as far as they touch the files of its patches.

They are fetched when the first question comes, without any file: the commits that are newer than the older version,
or all of them where that cuts some off; their number and size are printed. Then their trees follow by id, and one
batch brings the contents that naming a commit takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cache, cached_property
from pathlib import Path, PurePosixPath

from npu_rl.common.bounded import read_if_file
from npu_rl.common.disk import disk_errors, remove_tree
from npu_rl.common.errors import SourceError
from npu_rl.common.printable import counted
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.command import Git, init_bare
from npu_rl.stack.git.objects import GITLINK, SYMLINK, short
from npu_rl.stack.hunks.hunk_match import find_all, split_lines
from npu_rl.stack.port.file_scopes import FileScopes
from npu_rl.stack.port_series.target_version import TargetRef
from npu_rl.stack.resolve.release import sources_of
from npu_rl.stack.resolve.upstream_repository import Upstream
from npu_rl.stack.sources.git_fetch import GitRequest
from npu_rl.stack.store import Unit

_DAY = 86400
_FETCHED = "npu-rl-fetched"
_ABSENT = "0" * 40
_CANDIDATES = 400  # files that one commit added, of which one may be the renamed
_BYTES_PER_COMMIT = (
    900  # of trees: 352 kB for the 385 commits from verl 55e3c5b to v0.6.1, 1204 kB for 1352 to v0.8.0
)


@dataclass(frozen=True)
class PathChange:
    """The change of one commit to a path, for a merge in comparison with its first parent.

    Attributes:
        before: The file in the parent; None if it has none.
        blob: The file in the commit; None if it deleted the file.
    """

    commit: str
    before: str | None
    blob: str | None


@dataclass
class UpstreamHistory:
    """The commits that are in the new version and not in the pin. Methods raise SourceError.

    Attributes:
        folder: The folder for the fetched commits.
        since: The earlier of both versions' dates, in seconds since 1970.
        paths: The files of the patches.
    """

    upstream: Upstream
    folder: Path
    pin: str
    target: TargetRef
    since: int
    paths: Sequence[str]
    _open: list[Trees] = field(default_factory=list)

    def deleted(self, path: str) -> str | None:
        """Return the commit that deleted or renamed a file; None if no commit of the history did."""
        return _lasting(self._changes.get(path, []), lambda blob: blob is None)

    def renamed(self, path: str) -> str | None:
        """Return the new path of a file in the commit that deleted it, by git's rename detection."""
        commit = self.deleted(path)
        if commit is None:
            return None
        among = [path, *(new for new, _ in self._candidates(path, commit))]
        rows = self._contents.repository.lines(
            "diff-tree", "-r", "-z", "--no-commit-id", "--name-status", "-M", "--diff-filter=R", "-l0", commit,
            "--", *among,
        )  # fmt: skip
        pairs = zip(rows[1::3], rows[2::3], strict=True)
        return next(
            (new.decode("utf-8", "surrogateescape") for old, new in pairs if old == path.encode()), None
        )

    def added(
        self, path: str, new_lines: Sequence[bytes], old_lines: Sequence[bytes], inside: str | None = None
    ) -> str | None:
        """Return the commit since which a file has the new lines and lacks the old ones.

        Args:
            inside: The class and function that the lines are directly in; None for anywhere in the file.
        """
        old = [] if list(old_lines) == list(new_lines) else old_lines

        def has_new(blob: str | None) -> bool:
            return self._has(blob, path, new_lines, inside) and not self._has(blob, path, old, inside)

        return _lasting(self._changing(path, new_lines, old), cache(has_new))

    def lost(self, path: str, lines: Sequence[bytes], inside: str | None = None) -> str | None:
        """Return the commit since which a file, or a class or function of it, lacks the lines."""

        def lacks(blob: str | None) -> bool:
            return not self._has(blob, path, lines, inside)

        return _lasting(self._changing(path, lines), cache(lacks))

    def subject(self, commit: str) -> str:
        """Return the first line of a commit's message."""
        return (
            self._repository.run("log", "-1", "--format=%s", commit).stdout.decode("utf-8", "replace").strip()
        )

    def close(self) -> None:
        """Close the reader of objects."""
        for trees in self._open:
            trees.close()

    def _changing(self, path: str, *texts: Sequence[bytes]) -> list[PathChange]:
        """Return the changes after which a text occurs more or less often than before; all changes if there are none.

        The classes and functions of other versions need not be read: up to 0.1 s for each.
        """

        @cache
        def times(blob: str | None) -> list[int]:
            lines = [] if blob is None else split_lines(self._contents.blob(blob))
            return [len(find_all(lines, list(text))) for text in texts]

        changes = self._changes.get(path, [])
        return [change for change in changes if times(change.before) != times(change.blob)] or changes

    def _has(self, blob: str | None, path: str, lines: Sequence[bytes], inside: str | None) -> bool:
        content = b"" if blob is None else self._contents.blob(blob)
        if not lines or not find_all(split_lines(content), list(lines)):
            return False
        return inside is None or bool(FileScopes(content, path).places(lines, inside))

    # -- commits and trees -----------------------------------------------------------------------

    @cached_property
    def _repository(self) -> Git:
        """The repository with commits and trees, fetched now unless an earlier command did."""
        repository = Git(self.folder)
        mark = self.folder / _FETCHED
        with disk_errors(self.folder):
            if mark.exists():
                return repository
            init_bare(self.folder)
        commits = [self.target.id, self.pin]
        since = datetime.fromtimestamp(max(self.since - _DAY, 0), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            self.upstream.fetch(repository, commits, contents="tree:0", since=since)
            if self._is_cut(repository):
                # Some are older than the pin: of a branch that the pin is not on, or with dates that were set back.
                with disk_errors(self.folder):
                    remove_tree(self.folder)
                    init_bare(self.folder)
                self.upstream.fetch(repository, commits, contents="tree:0")
            # With the commits that those between were made from: the pin may be on another branch.
            listing = repository.text("log", "--boundary", "--format=%m%T", self.target.id, f"^{self.pin}")
            between = listing.split()
            self._tell_size(repository, sum(mark.startswith(">") for mark in between))
            # By id: a second fetch of the commits would bring them again, which is more than their trees.
            roots = [*(row[1:] for row in between), repository.text("log", "-1", "--format=%T", self.pin)]
            self.upstream.fetch(repository, roots, contents="blob:none")
        except SourceError as error:
            hint = (
                f"{error.hint or ''}\nTo port without it, which leaves commits unnamed: --no-history".strip()
            )
            what = f"The history of {self.upstream.name} between {short(self.pin)} and {self.target} can't be fetched"
            raise SourceError(what, where=error.where, why=error.why, hint=hint) from error
        with disk_errors(self.folder):
            mark.write_bytes(b"")
        return repository

    def _tell_size(self, repository: Git, count: int) -> None:
        size = sum(pack.stat().st_size for pack in repository.git_dir.glob("objects/pack/*.pack"))
        self.upstream.context.notify(
            f"{self.upstream.name}: history of {counted(count, 'commit')} since {short(self.pin)}: "
            f"{size / 1e6:.1f} MB of commits; their trees are about {count * _BYTES_PER_COMMIT / 1e6:.1f} MB"
        )

    def _is_cut(self, repository: Git) -> bool:
        """Return whether a commit between the versions lacks its parents."""
        shallow = (read_if_file(repository.git_dir / "shallow") or b"").decode().split()
        between = repository.text("rev-list", self.target.id, f"^{self.pin}").split()
        return not set(between).isdisjoint(shallow)

    @cached_property
    def _changes(self) -> dict[str, list[PathChange]]:
        """The changes of the commits to each path of the patches, the oldest first."""
        options = (
            "--raw",
            "--no-abbrev",
            "--no-renames",
            "-z",
            "--full-history",
            "--topo-order",
            "--reverse",
            "--diff-merges=first-parent",  # a merge may bring or remove lines itself
        )
        rows = self._repository.lines(
            "log", "--format=%x01%H", *options, self.target.id, f"^{self.pin}", "--", *self.paths
        )
        found: dict[str, list[PathChange]] = {}
        commit = fact = ""
        for row in rows:
            text = row.decode("utf-8", "surrogateescape").strip("\n")
            if text.startswith("\1"):
                commit = text[1:]
            elif text.startswith(":"):
                fact = text
            else:
                *modes, before, blob, _ = fact.removeprefix(":").split(" ")
                sides = (_file(mode, one) for mode, one in zip(modes, (before, blob), strict=True))
                found.setdefault(text, []).append(PathChange(commit, *sides))
        return found

    @cached_property
    def _at_pin(self) -> dict[str, str]:
        """The blob of each path at the pin."""
        rows = self._repository.lines("ls-tree", "-z", "--full-tree", self.pin, "--", *self.paths)
        pairs = (row.decode("utf-8", "surrogateescape").split("\t", 1) for row in rows)
        return {path: facts.split(" ")[2] for facts, path in pairs}

    # -- contents --------------------------------------------------------------------------------

    def _candidates(self, path: str, commit: str) -> list[tuple[str, str]]:
        """Return the files of the same kind that a commit added, with their blobs."""
        rows = self._repository.lines(
            "diff-tree",
            "-r",
            "-z",
            "--no-commit-id",
            "--raw",
            "--no-abbrev",
            "--no-renames",
            "--diff-filter=A",
            commit,
        )
        suffix = PurePosixPath(path).suffix
        pairs = zip(rows[::2], rows[1::2], strict=True)
        found = [(new.decode("utf-8", "surrogateescape"), fact.decode().split(" ")[3]) for fact, new in pairs]
        return [(new, blob) for new, blob in found if PurePosixPath(new).suffix == suffix][:_CANDIDATES]

    @cached_property
    def _contents(self) -> Trees:
        """The objects of the history with the needed contents, fetched as one batch."""
        wanted = dict.fromkeys(self._at_pin.values())
        for path, changes in self._changes.items():
            wanted.update((blob, None) for c in changes for blob in (c.before, c.blob) if blob is not None)
            if (commit := self.deleted(path)) is not None:
                wanted.update((blob, None) for _, blob in self._candidates(path, commit))
        units = self._deliver(wanted)
        lent = (*(unit.objects for unit in units), self._repository.git_dir / "objects")
        scratch = self.folder / "contents"
        with disk_errors(scratch):
            init_bare(scratch)
            shallow = read_if_file(self._repository.git_dir / "shallow")
            if shallow is not None:
                (scratch / "shallow").write_bytes(shallow)
        trees = Trees(Git(scratch, alternates=lent))
        self._open.append(trees)
        return trees

    def _deliver(self, wanted: Iterable[str]) -> list[Unit]:
        ids = tuple(wanted)
        if not ids:
            return []
        refs = (self.target.ref,) if self.target.ref.startswith("refs/") else ()
        request = GitRequest(f"{self.upstream.name} ({counted(len(ids), 'file version')})", ids, (), refs)
        sources = tuple(source for source in sources_of(self.upstream) if not source.pypi)
        delivery = self.upstream.context.deliverer().request(request, sources, None)
        if delivery.received:
            self.upstream.context.notify(f"{request.component}: {delivery.received / 1e6:.1f} MB")
        return list(delivery.units)


def _file(mode: str, blob: str) -> str | None:
    return None if blob == _ABSENT or mode in (GITLINK, SYMLINK) else blob


def _lasting(changes: Iterable[PathChange], holds: Callable[[str | None], bool]) -> str | None:
    """Return the commit since which something holds of a file; None if no commit made it hold.

    Each commit is compared with its own parent: the one above it in the list may be on another branch.
    """
    found = last = None
    for change in changes:
        before, now = holds(change.before), holds(change.blob)
        if now and not before:
            last = change.commit
            found = found or last
        elif before and not now:
            found = None  # reverted
    return found or last
