"""The lock: everything `setup` and `verify` need to know, and nothing they would have to resolve.

A machine writes it, people commit it. It is plain JSON with a digest over itself; the chain from each
pin to the taken trees is in it as git objects (`proof`), so it proves itself by hashing, off line.
No heavy imports here: this file is on the way of every `verify`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npu_rl.bounded import parse_json
from npu_rl.errors import LockError
from npu_rl.git.objects import GITLINK, Entry
from npu_rl.lock import lock_fields as t
from npu_rl.lock.inclusion_proof import check_proof
from npu_rl.lock.packed_bytes import Allowance, MiB
from npu_rl.lock.strict_json import UnexpectedShape, build, plain

LOCK_FORMAT = 1
MAXIMUM_SIZE = 32 * MiB

_RESTORE = "Restore it from version control, or make a new one: npu-rl lock --manifest M"


@dataclass(frozen=True)
class LockedTake:
    """One path of a component, as it is upstream at the pin, and where it goes. `path` "." is the root.

    mode, id: None where the pin does not have the path, and a merge brings it.
    """

    path: t.TreePath
    to: t.TreePath
    mode: t.Mode | None = None
    id: t.Id | None = None

    @property
    def entry(self) -> Entry | None:
        return Entry(self.mode, self.id) if self.mode is not None and self.id is not None else None


@dataclass(frozen=True)
class HeldPath:
    """One path of a component at the pin that patches come from: delivered, and not laid into the code tree."""

    path: t.TreePath
    mode: t.Mode
    id: t.Id

    @property
    def entry(self) -> Entry:
        return Entry(self.mode, self.id)


@dataclass(frozen=True)
class LockedSource:
    """One place a component may come from: exactly one of git, pypi, bundle."""

    git: t.Url | None = None
    pypi: t.Release | None = None
    bundle: t.BundlePath | None = None
    filename: str | None = None
    sha256: t.Sha256 | None = None
    size: int | None = None
    drop: tuple[t.TreePath, ...] = ()

    def shown(self) -> str:
        return self.git or self.pypi or self.bundle or "?"


@dataclass(frozen=True)
class Record:
    """What a merge does to one path: `id` None takes it away, else it becomes that blob.

    Without three_way or content the blob is upstream's own, or an earlier record of the component made it.
    three_way: base, ours, theirs; `git merge-file` makes the blob of them.
    content: the blob itself (zlib, base64), where merge-file does not give what the merge gave: git merges
    with the histogram diff, merge-file with Myers', and now and then that matters.
    """

    path: t.UpstreamPath
    mode: t.Mode | None
    id: t.Id | None
    three_way: tuple[t.Id, t.Id, t.Id] | None = None
    content: str | None = None


@dataclass(frozen=True)
class LockedMerge:
    """A pull request, as it was when the lock was made.

    commits: "id subject" of what it brought, the oldest first; of many, the newest, with `older` more before.
    drift: how many of them are the base branch's, and not the request's own.
    inside, outside: the paths it changes, in what is taken and elsewhere.
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
    records: tuple[Record, ...]
    tree: t.Id
    older: int = 0

    @property
    def count(self) -> int:
        """How many commits it brought."""
        return self.older + len(self.commits)


@dataclass(frozen=True)
class LockedPatch:
    """One patch of a component, or of the assembled tree.

    file: where its text is: a bundled patchset path, "./..." or "../..." from the manifest's folder, or
    "COMPONENT:path". sha256: of its bytes as they are there. offsets: hunk number to the lines it moved, as
    accepted. eol: "lf" if its CRLF line ends become LF before it is applied.
    """

    name: str
    file: str
    sha256: t.Sha256
    tree: t.Id
    hunks: int
    files: tuple[str, ...]
    strip: int = 1
    directory: t.Directory = ""
    exclude: tuple[t.Glob, ...] = ()
    offsets: dict[str, int] = field(default_factory=dict)
    eol: t.Eol = "keep"

    def applied_text(self, data: bytes) -> bytes:
        """What is applied, of the bytes that `sha256` names."""
        return data.replace(b"\r\n", b"\n") if self.eol == "lf" else data


@dataclass(frozen=True)
class LockedSubmodule:
    """A gitlink that the manifest names: its repository stands at `path`. proof: the pin's commit object."""

    path: t.TreePath
    git: t.Url
    pin: t.Id
    root: t.Id
    proof: tuple[str, ...]


@dataclass(frozen=True)
class LockedDist:
    """What importlib.metadata is to find for a package that is copied, not installed."""

    name: t.Distribution
    version: t.Version
    entry_points: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class LockedComponent:
    """One upstream at one pin.

    tree: what is taken, submodules in place; `result`: that after merges and patches.
    held: what patches come from beside what is taken; it is part of these trees.
    root: with `checkout: full`, the pin's own tree, which is what has to be delivered.
    repository: the whole repository's tree after the merges, if the manifest expects one.
    """

    sources: tuple[LockedSource, ...]
    take: tuple[LockedTake, ...]
    tree: t.Id
    result: t.Id
    checkout: t.Checkout = "take"
    ref: t.Ref | None = None
    pin: t.Id | None = None
    root: t.Id | None = None
    proof: tuple[str, ...] = ()
    merges: tuple[LockedMerge, ...] = ()
    patches: tuple[LockedPatch, ...] = ()
    submodules: tuple[LockedSubmodule, ...] = ()
    dist: LockedDist | None = None
    repository: t.Id | None = None
    held: tuple[HeldPath, ...] = ()

    def delivered_paths(self) -> tuple[LockedTake | HeldPath, ...]:
        """What is taken, and what is held beside it."""
        return (*self.take, *self.held)

    def entries_at_pin(self) -> tuple[tuple[str, Entry], ...]:
        """The paths that are delivered of the pin, and what is there."""
        return tuple((part.path, part.entry) for part in self.delivered_paths() if part.entry is not None)

    def wanted_objects(self) -> tuple[str, ...]:
        """The object ids that the sources have to deliver: what upstream has, not what merging makes."""
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
        """The pin, for people: a commit id, or what PyPI delivers."""
        if self.pin:
            return self.pin
        source = self.sources[0]
        return f"{source.pypi} sha256:{source.sha256}"


@dataclass(frozen=True)
class Lock:
    """See the module."""

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
        """Every patch with the component it belongs to ("tree" for the assembled one), in order."""
        pairs = [(name, p) for name, c in self.components.items() for p in c.patches]
        return pairs + [("tree", p) for p in self.tree_patches]

    def content_id(self) -> str:
        """A short name for exactly this lock, for caches."""
        return hashlib.sha256(dump(self).encode()).hexdigest()[:40]


# -- text ----------------------------------------------------------------------------------------------


def dump(lock: Lock) -> str:
    """The lock as JSON text, with its digest; the same lock always gives the same text, which is UTF-8."""
    body = plain(lock)
    body["digest"] = _digest(body)
    text = json.dumps(body, indent=1, ensure_ascii=False) + "\n"
    # A name in an upstream tree need not be UTF-8: its odd bytes (surrogates here) become JSON escapes.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def digest_of(lock: Lock) -> str:
    """The digest that `dump` writes into the lock's text."""
    return _digest(plain(lock))


def _digest(body: Mapping[str, Any]) -> str:
    rest = {k: v for k, v in body.items() if k != "digest"}
    text = json.dumps(rest, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def read(path: Path) -> Lock:
    """Read and check a lock file. Raises LockError."""
    return parse(read_text(path), str(path))


def read_text(path: Path) -> str:
    """The text of a lock file. Raises LockError if there is none that can be read."""
    try:
        if path.exists() and not path.is_file():  # reading a device might never end
            raise LockError("The lock is not a regular file", where=str(path))
        with path.open("rb") as file:
            data = file.read(MAXIMUM_SIZE + 1)
        if len(data) > MAXIMUM_SIZE:
            raise LockError("The lock file is too large", where=str(path), why="It is larger than 32 MiB.")
        return data.decode("utf-8")
    except FileNotFoundError as error:
        raise LockError(
            "This manifest has no lock", where=str(path), hint="Make one: npu-rl lock --manifest M"
        ) from error
    except (UnicodeDecodeError, OSError) as error:
        raise LockError("The lock can't be read", where=str(path), why=str(error), hint=_RESTORE) from error


def parse(text: str, where: str) -> Lock:
    """A lock from its text; checks format, digest, shape, and the proof of every pin. Raises LockError."""
    return parse_with_digest(text, where)[0]


def parse_with_digest(text: str, where: str) -> tuple[Lock, str]:
    """The same, and the lock's digest: a SHA-256 over all of its content, the last line of its text."""

    def refused(what: str, why: str | None = None, hint: str = _RESTORE) -> LockError:
        return LockError(what, where=where, why=why, hint=hint)

    try:
        body = parse_json(text)
        if not isinstance(body, dict) or type(body.get("lock_format")) is not int:
            raise refused("The file is not a lock", "It is not a JSON object with an integer `lock_format`.")
        if body["lock_format"] != LOCK_FORMAT:
            newer = body["lock_format"] > LOCK_FORMAT
            raise refused(
                f"The lock has format {body['lock_format']}; this npu-rl reads format {LOCK_FORMAT}",
                hint="Upgrade npu-rl." if newer else _RESTORE,
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


def lock_path(manifest_path: Path) -> Path:
    """Where the lock of a manifest is: NAME.lock.json beside NAME.yaml."""
    return manifest_path.with_name(manifest_path.stem + ".lock.json")
