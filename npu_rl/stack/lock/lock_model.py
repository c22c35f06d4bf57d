"""Model of the lock: everything that `setup` and `verify` need, fully resolved.

A lock is JSON with a digest of its content. It has the git objects from each pin to the taken trees (`proof`), so
hashing proves it without network access. No heavy imports here: every `verify` imports this module.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import NO_FILE, open_file, parse_json
from npu_rl.common.errors import LockError
from npu_rl.stack.git.objects import GITLINK, Entry
from npu_rl.stack.lock import lock_fields as t
from npu_rl.stack.lock.inclusion_proof import check_proof
from npu_rl.stack.lock.lock_fields import Allowance, MiB, UnexpectedShape, build, plain

LOCK_FORMAT = 1
MAXIMUM_SIZE = 32 * MiB

_BEGINNING = re.compile(rb'\s*\{\s*"lock_format":\s*[0-9]')
_RESTORE = "Restore it from version control, or move it away and make a new one: npu-rl lock --manifest M"


@dataclass(frozen=True)
class LockedTake:
    """One taken path of a component at the pin ("." is the root), and its target in the code tree.

    Attributes:
        mode, id: None where the pin does not have the path and a merge adds it.
    """

    path: t.TreePath
    to: t.TreePath
    mode: t.Mode | None = None
    id: t.Id | None = None

    @property
    def entry(self) -> Entry | None:
        """The path's entry at the pin, if it exists there."""
        return Entry(self.mode, self.id) if self.mode is not None and self.id is not None else None


@dataclass(frozen=True)
class HeldPath:
    """One path of a component at the pin that is delivered but not part of the code tree."""

    path: t.TreePath
    mode: t.Mode
    id: t.Id

    @property
    def entry(self) -> Entry:
        """The path's entry at the pin."""
        return Entry(self.mode, self.id)


@dataclass(frozen=True)
class LockedSource:
    """One source of a component: either git or pypi."""

    git: t.Url | None = None
    pypi: t.Release | None = None
    filename: str | None = None
    sha256: t.Sha256 | None = None
    size: int | None = None
    drop: tuple[t.TreePath, ...] = ()

    def shown(self) -> str:
        """Return the source for messages."""
        return self.git or self.pypi or "?"


@dataclass(frozen=True)
class Record:
    """The effect of a merge on one path: removal (`id` is None), or a new blob.

    Without three_way or content the blob is upstream's own, or an earlier record of the component creates it.

    Attributes:
        three_way: Base, ours and theirs, from which `git merge-file` creates the blob.
        content: The blob itself (zlib, base64), where merge-file gives another result than the merge: git merges with
            the histogram diff, merge-file with Myers'.
    """

    path: t.UpstreamPath
    mode: t.Mode | None
    id: t.Id | None
    three_way: tuple[t.Id, t.Id, t.Id] | None = None
    content: str | None = None


@dataclass(frozen=True)
class LockedMerge:
    """A pull request, as it was when the lock was made.

    Attributes:
        commits: "id subject" of its commits, oldest first; only the newest if there are many.
        older: How many commits precede these.
        drift: How many of the commits are the base branch's, not the pull request's own.
        inside, outside: The paths it changes, among the taken paths and elsewhere.
    """

    ref: t.Ref
    how: t.How
    head: t.Id
    base_ref: t.Ref
    base_tip: t.Id
    merge_base: t.Id
    commits: tuple[str, ...]
    drift: int
    inside: tuple[str, ...]
    outside: tuple[str, ...]
    records: tuple[Record, ...] = field(repr=False)
    tree: t.Id
    older: int = 0

    @property
    def count(self) -> int:
        """The number of commits it adds."""
        return self.older + len(self.commits)


@dataclass(frozen=True)
class LockedPatch:
    """One patch of a component, or of the assembled tree.

    Attributes:
        file: Where its text is: a bundled patchset path, "./..." or "../..." from the manifest's folder, or
            "COMPONENT:path".
        sha256: Digest of the bytes of that file.
        eol: "lf" if CRLF line ends are converted to LF before the patch is applied.
        repair: "final-newline" if the missing newline at its end is added first.
        replaces: The patch that it replaces, as "COMPONENT:path"; empty for none.
    """

    name: str
    file: str
    sha256: t.Sha256
    tree: t.Id
    hunks: int
    files: tuple[str, ...]
    strip: int = 1
    directory: t.Directory = ""
    eol: t.Eol = "keep"
    repair: t.Repair = "none"
    replaces: str = ""

    def applied_text(self, data: bytes) -> bytes:
        """Return the text to apply, given the bytes of the file."""
        if self.eol == "lf":
            data = data.replace(b"\r\n", b"\n")
        return data + b"\n" if self.repair == "final-newline" else data


@dataclass(frozen=True)
class LockedSubmodule:
    """A submodule that the manifest lists, whose content is at `path`; `proof` is the pin's commit object."""

    path: t.TreePath
    git: t.Url
    pin: t.Id
    root: t.Id
    proof: tuple[str, ...]


@dataclass(frozen=True)
class LockedDist:
    """The dist-info of a package that is copied, not installed, for importlib.metadata."""

    name: t.Distribution
    version: t.Version
    entry_points: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class LockedBuild:
    """One command that builds a component; `proven` is whether it has been run with this pin."""

    run: tuple[t.Text, ...]
    products: tuple[t.Glob, ...]
    env: dict[t.Variable, t.Value] = field(default_factory=dict)
    proven: bool = False


@dataclass(frozen=True)
class LockedComponent:
    """One upstream at one pin.

    Attributes:
        tree: Tree id of the taken paths, submodules included.
        result: The id of the same tree after merges and patches.
        held: Paths that are not taken but part of these trees: they have patches, or are submodules that are taken in
            part.
        skipped: Gitlinks in the taken paths that are left out.
        root: With `checkout: full`, the pin's root tree, which must be delivered.
        repository: Tree id of the whole repository after the merges, if the manifest sets `expect`.
        declares: The version bounds that files of the component declare at the pin, by file, as they are written; under
            setup.py[EXTRA] those of an extra. None in a lock of an npu-rl that did not read them.
        build: Commands that build it, with `checkout: full`.
        unread: Requirements that only running a file would give, or that are not PEP 508, with their place.
    """

    sources: tuple[LockedSource, ...]
    take: tuple[LockedTake, ...]
    tree: t.Id
    result: t.Id
    checkout: t.Checkout = "take"
    ref: t.Ref | None = None
    pin: t.Id | None = None
    root: t.Id | None = None
    proof: tuple[str, ...] = field(default=(), repr=False)
    merges: tuple[LockedMerge, ...] = ()
    patches: tuple[LockedPatch, ...] = ()
    submodules: tuple[LockedSubmodule, ...] = ()
    dist: LockedDist | None = None
    repository: t.Id | None = None
    held: tuple[HeldPath, ...] = field(default=(), repr=False)
    skipped: tuple[t.TreePath, ...] = ()
    declares: dict[t.UpstreamPath, tuple[t.Requirement, ...]] | None = field(default=None, repr=False)
    unread: tuple[t.Text, ...] = ()
    build: tuple[LockedBuild, ...] = ()

    def delivered_paths(self) -> tuple[LockedTake | HeldPath, ...]:
        """Return the taken and the held paths."""
        return (*self.take, *self.held)

    def entries_at_pin(self) -> tuple[tuple[str, Entry], ...]:
        """Return the delivered paths that exist at the pin, with their entries."""
        return tuple((part.path, part.entry) for part in self.delivered_paths() if part.entry is not None)

    def wanted_objects(self) -> tuple[str, ...]:
        """Return the ids of the objects that the sources have to deliver; merging creates the others."""
        taken = [self.root] if self.root else [e.oid for _, e in self.entries_at_pin() if e.mode != GITLINK]
        wanted = dict.fromkeys(taken)
        merged_ids: set[str] = set()
        for record in (r for merge in self.merges for r in merge.records):
            if record.three_way:
                wanted.update(dict.fromkeys(i for i in record.three_way if i not in merged_ids))
            elif record.id and record.content is None and record.id not in merged_ids:
                wanted[record.id] = None
            if record.id and (record.three_way or record.content is not None):
                merged_ids.add(record.id)
        return tuple(wanted)

    def shown_pin(self) -> str:
        """Return the pin for messages: a commit id, or a release with its SHA-256."""
        if self.pin:
            return self.pin
        source = self.sources[0]
        return f"{source.pypi} sha256:{source.sha256}"


@dataclass(frozen=True)
class Lock:
    """A resolved manifest: components at their pins, patches, requirements, and the ids of the result.

    Attributes:
        manifest_digest: SHA-256 of the manifest's merged data.
        manifest_files: SHA-256 of each file of the manifest, by portable name.
        tree, commit: Ids of the code tree and of its last commit.
        runtime: Tree id of npu_rl_runtime, if it is part of the code tree.
        tree_patches: Patches of the assembled tree.
    """

    lock_format: int
    manifest: t.Name
    title: t.Text
    device: t.Device
    manifest_digest: t.Sha256
    manifest_files: dict[str, t.Sha256]
    components: dict[t.Name, LockedComponent]
    tree: t.Id
    commit: t.Id
    runtime: t.Id | None = None
    tree_patches: tuple[LockedPatch, ...] = ()
    requirements: tuple[t.Requirement, ...] = ()
    host: dict[t.Text, t.Text] = field(default_factory=dict)
    env: dict[t.Variable, t.Value] = field(default_factory=dict)

    def patches(self) -> list[tuple[str, LockedPatch]]:
        """Return every patch with its component ("tree" for the assembled tree), in order."""
        pairs = [(name, p) for name, c in self.components.items() for p in c.patches]
        return pairs + [("tree", p) for p in self.tree_patches]

    def content_id(self) -> str:
        """Return a short id of exactly this lock, for caches."""
        return hashlib.sha256(dump(self).encode()).hexdigest()[:40]


# -- text ----------------------------------------------------------------------------------------------


def dump(lock: Lock) -> str:
    """Return the lock as JSON text (UTF-8) with its digest; equal locks give equal text."""
    body = plain(lock)
    body["digest"] = _digest(body)
    text = json.dumps(body, indent=1, ensure_ascii=False) + "\n"
    # A name in an upstream tree need not be UTF-8: its odd bytes (surrogates here) become JSON escapes.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def digest_of(lock: Lock) -> str:
    """Return the digest that `dump` writes into the lock's text."""
    return _digest(plain(lock))


def _digest(body: Mapping[str, Any]) -> str:
    rest = {k: v for k, v in body.items() if k != "digest"}
    text = json.dumps(rest, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def read(path: Path) -> Lock:
    """Read and check a lock file. Raises LockError."""
    return parse(read_text(path), str(path))


def read_text(path: Path) -> str:
    """Return the text of a lock file. Raises LockError if it does not exist or can't be read."""
    try:
        with open_file(path) as file:
            data = file.read(MAXIMUM_SIZE + 1)
        if len(data) > MAXIMUM_SIZE:
            raise LockError("The lock file is too large", where=str(path), why="It is larger than 32 MiB.")
        return data.decode("utf-8")
    except FileNotFoundError as error:
        import shlex

        manifest = path.with_name(path.name.removesuffix(".lock.json") + ".yaml")
        named = shlex.quote(str(manifest)) if manifest.is_file() else "M"
        hint = f"Make one: npu-rl lock --manifest {named}"
        raise LockError("This manifest has no lock", where=str(path), hint=hint) from error
    except (UnicodeDecodeError, OSError) as error:
        if isinstance(error, OSError) and error.errno in NO_FILE:
            raise LockError("The lock is not a regular file", where=str(path)) from error
        raise LockError("The lock can't be read", where=str(path), why=str(error), hint=_RESTORE) from error


def parse(text: str, where: str) -> Lock:
    """Parse a lock; check its format, digest, schema, and the proof of every pin. Raises LockError."""
    return parse_with_digest(text, where)[0]


def parse_with_digest(text: str, where: str, restore: str = _RESTORE) -> tuple[Lock, str]:
    """Parse a lock and return it with its digest, the SHA-256 of its content. Raises LockError.

    Args:
        restore: The hint for a damaged lock.
    """

    def refused(what: str, why: str | None = None, hint: str = restore) -> LockError:
        return LockError(what, where=where, why=why, hint=hint)

    try:
        body = parse_json(text)
        if not isinstance(body, dict) or type(body.get("lock_format")) is not int:
            raise refused("The file is not a lock", "It is not a JSON object with an integer `lock_format`.")
        if body["lock_format"] != LOCK_FORMAT:
            newer = body["lock_format"] > LOCK_FORMAT
            raise refused(
                f"The lock has format {body['lock_format']}; this npu-rl reads format {LOCK_FORMAT}",
                hint="Upgrade npu-rl." if newer else restore,
            )
        digest = _digest(body)
    except (ValueError, RecursionError) as error:
        raise refused("The lock is not valid JSON", str(error)) from error
    if body.pop("digest", None) != digest:
        raise refused("The lock was edited by hand or damaged", "Its digest does not match its content.")
    try:
        lock: Lock = build(Lock, body, "lock")
    except UnexpectedShape as error:
        raise refused("The lock does not follow its schema", str(error)) from error
    allowance = Allowance(each=8 * MiB, total=64 * MiB)  # the proofs of the bundled locks have 0.1 MB
    for name, component in lock.components.items():
        check_proof(name, component, where, allowance)
    return lock, digest


def begins_as_lock(path: Path) -> bool:
    """Return whether a file starts like a lock; it may be damaged or have git's conflict markers."""
    with open_file(path) as file:
        return _BEGINNING.match(file.read(256)) is not None


def lock_path(manifest_path: Path) -> Path:
    """Return the path of a manifest's lock: NAME.lock.json next to NAME.yaml."""
    return manifest_path.with_name(manifest_path.stem + ".lock.json")
