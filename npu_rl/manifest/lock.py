"""The lock: everything `setup` and `verify` need to know, and nothing they would have to resolve.

A machine writes it, people commit it. It is plain JSON with a digest over itself; the chain from each
pin to the taken trees is in it as git objects (`proof`), so it proves itself by hashing, off line.
No heavy imports here: this file is on the way of every `verify`.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import types
import typing
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from npu_rl.errors import LockError
from npu_rl.objects import GITLINK, SYMLINK, TREE, Entry, commit_tree_id, object_id, parse_tree

LOCK_FORMAT = 1
MAXIMUM_SIZE = 32 * 1024 * 1024


@dataclass(frozen=True)
class Take:
    """One path of a component, as it is upstream at the pin, and where it goes. `path` "." is the root."""

    path: str
    to: str
    mode: str
    id: str

    @property
    def entry(self) -> Entry:
        return Entry(self.mode, self.id)


@dataclass(frozen=True)
class Source:
    """One place a component may come from: exactly one of git, pypi, bundle."""

    git: str | None = None
    pypi: str | None = None
    bundle: str | None = None
    filename: str | None = None
    sha256: str | None = None
    size: int | None = None
    drop: tuple[str, ...] = ()

    def shown(self) -> str:
        return self.git or self.pypi or self.bundle or "?"


@dataclass(frozen=True)
class Record:
    """What a merge does to one path: an upstream blob (id), nothing left (id None), or a three-way merge."""

    path: str
    mode: str | None
    id: str | None
    three_way: tuple[str, str, str] | None = None  # base, ours, theirs; `id` is what git merge-file gives


@dataclass(frozen=True)
class Merge:
    """A pull request, as it was when the lock was made."""

    ref: str
    how: str
    head: str
    base_ref: str
    base_tip: str
    merge_base: str
    commits: tuple[str, ...]  # "id subject" of what it brought, the oldest first
    drift: int
    inside: tuple[str, ...]
    outside: tuple[str, ...]
    records: tuple[Record, ...]
    tree: str


@dataclass(frozen=True)
class Patch:
    """One patch of a component, or of the assembled tree."""

    name: str
    file: str  # where its text is: a bundled patchset path, "./..." beside the manifest, or "COMPONENT:path"
    sha256: str
    tree: str
    hunks: int
    files: tuple[str, ...]
    strip: int = 1
    directory: str = ""
    exclude: tuple[str, ...] = ()
    offsets: dict[str, int] = field(default_factory=dict)  # hunk number -> lines it moved, as accepted


@dataclass(frozen=True)
class Submodule:
    """A gitlink that the manifest names: its repository stands at `path`."""

    path: str
    git: str
    pin: str
    root: str


@dataclass(frozen=True)
class Dist:
    """What importlib.metadata is to find for a package that is copied, not installed."""

    name: str
    version: str
    entry_points: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Component:
    """One upstream at one pin. `tree` is what is taken, `result` that after merges and patches."""

    sources: tuple[Source, ...]
    take: tuple[Take, ...]
    tree: str
    result: str
    checkout: str = "take"
    ref: str | None = None
    pin: str | None = None
    proof: tuple[str, ...] = ()
    merges: tuple[Merge, ...] = ()
    patches: tuple[Patch, ...] = ()
    submodules: tuple[Submodule, ...] = ()
    dist: Dist | None = None
    repository: str | None = None  # the whole repository's tree after the merges, if the manifest expects one

    def wants(self) -> tuple[str, ...]:
        """The object ids that git has to deliver."""
        ids = [self.tree] if self.checkout == "full" else [take.id for take in self.take]
        ids += [r.id for m in self.merges for r in m.records if r.id and not r.three_way]
        ids += [i for m in self.merges for r in m.records if r.three_way for i in r.three_way]
        return tuple(dict.fromkeys(ids))

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
    manifest: str
    title: str
    device: str
    manifest_digest: str
    manifest_files: dict[str, str]
    components: dict[str, Component]
    tree: str
    commit: str
    runtime: str | None = None
    tree_patches: tuple[Patch, ...] = ()
    requirements: tuple[str, ...] = ()
    host: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)

    def patches(self) -> list[tuple[str, Patch]]:
        """Every patch with the component it belongs to ("tree" for the assembled one), in order."""
        pairs = [(name, p) for name, c in self.components.items() for p in c.patches]
        return pairs + [("tree", p) for p in self.tree_patches]

    def content_id(self) -> str:
        """A short name for exactly this lock, for caches."""
        return hashlib.sha256(dump(self).encode()).hexdigest()[:40]


# -- text ----------------------------------------------------------------------------------------------


def dump(lock: Lock) -> str:
    """The lock as JSON text, with its digest; the same lock always gives the same text."""
    body = _plain(lock)
    body["digest"] = _digest(body)
    return json.dumps(body, indent=1, ensure_ascii=False) + "\n"


def _digest(body: Mapping[str, Any]) -> str:
    rest = {k: v for k, v in body.items() if k != "digest"}
    text = json.dumps(rest, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def read(path: Path) -> Lock:
    """Read and check a lock file. Raises LockError."""
    try:
        if path.stat().st_size > MAXIMUM_SIZE:
            raise LockError("The lock is too large to be one", where=str(path))
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise LockError(
            "There is no lock for this manifest", where=str(path), hint="Make one: npu-rl lock --manifest M"
        ) from error
    except (UnicodeDecodeError, OSError) as error:
        raise LockError("The lock can't be read", where=str(path), why=str(error)) from error
    return parse(text, str(path))


def parse(text: str, where: str) -> Lock:
    """A lock from its text; checks format, digest, shape, and the proof of every pin. Raises LockError."""
    again = "Restore it from version control, or make it anew: npu-rl lock --manifest M"
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LockError("The lock is not valid JSON", where=where, why=str(error), hint=again) from error
    if not isinstance(body, dict) or not isinstance(body.get("lock_format"), int):
        raise LockError("This is not a lock", where=where, hint=again)
    if body["lock_format"] != LOCK_FORMAT:
        newer = body["lock_format"] > LOCK_FORMAT
        raise LockError(
            f"The lock has format {body['lock_format']}; this npu-rl reads format {LOCK_FORMAT}",
            where=where,
            hint="Upgrade npu-rl." if newer else again,
        )
    if body.pop("digest", None) != _digest(body):
        raise LockError(
            "The lock was changed by hand or damaged",
            where=where,
            why="Its digest does not fit its content.",
            hint=again,
        )
    try:
        lock: Lock = _build(Lock, body, "lock")
    except _Shape as error:
        raise LockError(
            "The lock is not as this npu-rl writes it", where=where, why=str(error), hint=again
        ) from error
    for name, component in lock.components.items():
        check_proof(name, component, where)
    return lock


# -- proof ---------------------------------------------------------------------------------------------


def pack_proof(objects: list[bytes]) -> tuple[str, ...]:
    """Objects (the pin's commit, then trees) as text for the lock."""
    return tuple(base64.b64encode(zlib.compress(data, 9)).decode() for data in objects)


def check_proof(name: str, component: Component, where: str) -> None:
    """Prove by hashing that the pin contains what is taken. Raises LockError."""
    if component.pin is None:
        return

    def wrong(why: str) -> LockError:
        return LockError(
            f"The lock does not prove what it says about {name}",
            where=where,
            why=why,
            hint="Make it anew: npu-rl lock --manifest M",
        )

    try:
        data = [
            zlib.decompressobj().decompress(base64.b64decode(p), 8 * 1024 * 1024) for p in component.proof
        ]
    except (ValueError, zlib.error) as error:
        raise wrong(str(error)) from error
    if not data or object_id("commit", data[0]) != component.pin:
        raise wrong(f"its first object is not the commit {component.pin}")
    trees = {object_id("tree", d): d for d in data[1:]}
    root = commit_tree_id(data[0])
    links = {s.path: s.root for s in component.submodules}
    for take in component.take:
        found = _walk(root, take.path, trees)
        if component.checkout == "full" and not links and component.tree != root:
            raise wrong(f"the commit's root tree is {root}")
        inside = any(p == take.path or take.path == "." or p.startswith(take.path + "/") for p in links)
        if found != take.entry and not inside:
            raise wrong(f"{take.path} is {found.oid if found else 'not there'}, not {take.id}")


def _walk(root: str, path: str, trees: Mapping[str, bytes]) -> Entry | None:
    entry: Entry | None = Entry(TREE, root)
    if path == ".":
        return entry
    for part in path.split("/"):
        data = trees.get(entry.oid) if entry is not None and entry.is_tree else None
        entry = parse_tree(data).get(part) if data is not None else None
    return entry if entry is None or entry.mode not in (SYMLINK, GITLINK) else None


# -- dataclasses from and to JSON ----------------------------------------------------------------------

T = TypeVar("T")


class _Shape(Exception):
    """The JSON has another shape than the dataclass."""


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        out = {}
        for f in dataclasses.fields(value):
            item = getattr(value, f.name)
            default = f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
            if item != default:  # what is not there is as by default: short locks, short diffs
                out[f.name] = _plain(item)
        return out
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return value


_HINTS: dict[type, dict[str, Any]] = {}


def _build(kind: Any, data: Any, at: str) -> Any:
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if data is None:
            return None
        return _build(next(a for a in arguments if a is not type(None)), data, at)
    if origin is tuple:
        if not isinstance(data, list):
            raise _Shape(f"{at}: a list was expected")
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_build(arguments[0], d, f"{at}[{i}]") for i, d in enumerate(data))
        if len(arguments) != len(data):
            raise _Shape(f"{at}: {len(arguments)} items were expected")
        return tuple(_build(a, d, at) for a, d in zip(arguments, data, strict=True))
    if origin is dict:
        if not isinstance(data, dict):
            raise _Shape(f"{at}: a mapping was expected")
        return {k: _build(arguments[1], v, f"{at}.{k}") for k, v in data.items()}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _build_dataclass(kind, data, at)
    if not isinstance(data, kind) or isinstance(data, bool):
        raise _Shape(f"{at}: {kind.__name__} was expected")
    return data


def _build_dataclass(kind: type[T], data: Any, at: str) -> T:
    if not isinstance(data, dict):
        raise _Shape(f"{at}: a mapping was expected")
    hints = _HINTS.get(kind)
    if hints is None:
        hints = _HINTS[kind] = typing.get_type_hints(kind)
    unknown = sorted(set(data) - set(hints))
    if unknown:
        raise _Shape(f"{at}: unknown key {unknown[0]!r}")
    values = {k: _build(hints[k], v, f"{at}.{k}") for k, v in data.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise _Shape(f"{at}: {error}") from error


def file_for(manifest_path: Path) -> Path:
    """Where the lock of a manifest is: NAME.lock.json beside NAME.yaml."""
    return manifest_path.with_name(manifest_path.stem + ".lock.json")
