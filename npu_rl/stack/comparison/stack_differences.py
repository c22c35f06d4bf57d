"""Differences between two locks: pins, takes, merges, patches, requirements, environment, host."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from npu_rl.common.masking import masked_value
from npu_rl.common.printable import counted
from npu_rl.common.yaml_documents.document_kind import find_manifest
from npu_rl.stack.comparison.commits_between import CommitsBetween
from npu_rl.stack.git.objects import short
from npu_rl.stack.lock import lock_model
from npu_rl.stack.lock.lock_fields import plain
from npu_rl.stack.lock.lock_model import Lock, LockedComponent, LockedPatch
from npu_rl.stack.manifest.load_manifest import load_manifest
from npu_rl.stack.resolve.refs import is_full_id
from npu_rl.stack.sources.progress import Notify

_REF = re.compile("^refs/((tags|heads)/)?")
_NUMBER = re.compile("^[0-9]+-")
_OF_THE_TEXT = ("name", "file", "sha256", "tree", "hunks", "files")


class LockFile(NamedTuple):
    """A lock and its path."""

    path: Path
    lock: Lock


@dataclass(frozen=True)
class ValueDifference:
    """A value that differs; `before` or `after` is None if only one side has it.

    Attributes:
        of: A component, or one of: stack, tree, requirements, env, host; empty for a pin.
    """

    of: str
    name: str
    before: str | None
    after: str | None

    @property
    def state(self) -> str:
        """Return whether it was added, removed or changed."""
        return "added" if self.before is None else "removed" if self.after is None else "changed"


@dataclass(frozen=True)
class StackDifferences:
    """Two locks and their differences.

    Attributes:
        before, after: The locks, with their paths.
        pins: Components with another pin, or that only one side has.
        commits: The commits between two pins, by component.
        values: All other differences.
    """

    before: LockFile
    after: LockFile
    pins: tuple[ValueDifference, ...]
    commits: Mapping[str, CommitsBetween]
    values: tuple[ValueDifference, ...]

    def pin_rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield the component, its old pin, its new pin, and the number of commits in between."""
        for one in self.pins:
            commits = self.commits.get(one.name)
            shown = one.state if commits is None else commits.shown()
            yield one.name, _short(one.before), _short(one.after), shown

    def value_rows(self) -> Iterator[tuple[str, str, str, str, str]]:
        """Yield every other difference: its owner, its name, the change, and both values."""
        for one in self.values:
            yield one.of, one.name, one.state, _short(one.before), _short(one.after)

    def summary(self) -> str:
        """Return the number of differences in words."""
        components = len(self.before.lock.components.keys() | self.after.lock.components.keys())
        pins = f"{len(self.pins)} of {counted(components, 'component')} with another pin"
        values = counted(len(self.values), "other difference")
        return f"{pins}, {values}" if self.pins or self.values else "no difference"


def read_lock_file(name_or_path: str, notify: Notify) -> LockFile:
    """Return a lock by the name or path of its manifest, or by its own path.

    Notifies of a manifest that is newer than its lock. Raises ManifestError, LockError.
    """
    path = Path(name_or_path)
    if not name_or_path.endswith(".lock.json") and not (path.is_file() and lock_model.begins_as_lock(path)):
        manifest = find_manifest(name_or_path)
        path = lock_model.lock_path(manifest)
        lock = lock_model.read(path)
        if lock.manifest_digest != load_manifest(name_or_path).digest:
            notify(
                f"note: {manifest.name} has changed since its lock was made; the lock is what is compared."
            )
        return LockFile(path, lock)
    return LockFile(path, lock_model.read(path))


def compare(
    before: LockFile, after: LockFile, commits: Mapping[str, CommitsBetween] | None = None
) -> StackDifferences:
    """Return what differs.

    Args:
        commits: The commits between the pins, by component.
    """
    one, other = _Facts(before.lock), _Facts(after.lock)
    pins = tuple(_differing("", one.pins, other.pins))
    both = one.lock.components.keys() & other.lock.components.keys()
    values: list[ValueDifference] = []
    for name in (name for name in other.lock.components if name in both):
        values += _differing(name, one.component(name), other.component(name))
    for of, left, right in zip(one.others, one.others.values(), other.others.values(), strict=True):
        values += _differing(of, left, right)
    return StackDifferences(before, after, pins, commits or {}, tuple(map(_masked, values)))


def moved_components(before: Lock, after: Lock) -> list[str]:
    """Return the names of the components of both locks whose pins differ."""
    pins = _Facts(before).pins, _Facts(after).pins
    return [name for name in pins[1] if name in pins[0] and pins[0][name] != pins[1][name]]


class _Facts:
    """What is compared of a lock: values by name."""

    def __init__(self, lock: Lock) -> None:
        self.lock = lock
        self.pins = {name: _pin(one) for name, one in lock.components.items()}
        self.others: dict[str, dict[str, str]] = {
            "stack": {"device": lock.device, "npu_rl_runtime": lock.runtime or ""},
            "tree": _patches(lock.tree_patches),
            "requirements": _by_package(lock.requirements),
            "env": lock.env,
            "host": lock.host,
        }

    def component(self, name: str) -> dict[str, str]:
        """Return a component's facts but for its pin."""
        one = self.lock.components[name]
        found = {f"take {take.path}": f"to {take.to}" for take in one.take}
        found |= {f"merge {merge.ref}": f"{merge.how} at {merge.head}" for merge in one.merges}
        found |= _patches(one.patches)
        found |= {"sources": ", ".join(source.shown() for source in one.sources), "checkout": one.checkout}
        found |= {f"submodule {module.path}": module.pin for module in one.submodules}
        found |= {f"skipped submodule {path}": "yes" for path in one.skipped}
        for number, step in enumerate(one.build, 1):
            env = [f"{name}={masked_value(name, value)}" for name, value in step.env.items()]
            found[f"build {number}"] = f"{' '.join([*env, *step.run])} -> {', '.join(step.products)}"
        if one.dist is not None:
            points = one.dist.entry_points.items()
            found |= {"dist": f"{one.dist.name} {one.dist.version}"}
            found |= {
                f"entry point {group} {key}": to for group, inner in points for key, to in inner.items()
            }
        return found


def _pin(one: LockedComponent) -> str:
    pin = one.shown_pin()
    return pin if one.ref in (None, pin) else f"{pin} {one.ref}"


def _patches(patches: Iterable[LockedPatch]) -> dict[str, str]:
    """Return patches by name without its number, as their name, digest and options; the file's place is no part."""
    found: dict[str, str] = {}
    for patch in patches:
        slug = f"patch {_NUMBER.sub('', patch.name)}"
        options = {name: value for name, value in plain(patch).items() if name not in _OF_THE_TEXT}
        words = [patch.name, patch.sha256[:12], *(f"{name}={value}" for name, value in options.items())]
        found[f"patch {patch.name}" if slug in found else slug] = " ".join(words)
    return found


def _by_package(requirements: Iterable[str]) -> dict[str, str]:
    """Return requirements by package; those of one package that differ by their markers stay together."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    found: dict[str, str] = {}
    for text in requirements:
        try:
            name = canonicalize_name(Requirement(text).name)
        except InvalidRequirement:  # of a lock that another npu-rl wrote
            name = canonicalize_name(text)
        found[name] = f"{found[name]}, {text}" if name in found else text
    return found


def _differing(of: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[ValueDifference]:
    for name in dict.fromkeys([*after, *before]):
        if before.get(name) != after.get(name):
            yield ValueDifference(of, name, before.get(name), after.get(name))


def _masked(one: ValueDifference) -> ValueDifference:
    """Return a variable with its secret values masked; others as they are."""
    if one.of != "env":
        return one
    before, after = (None if v is None else masked_value(one.name, v) for v in (one.before, one.after))
    return ValueDifference(one.of, one.name, before, after)


def _short(text: str | None) -> str:
    """Return a value with short ids, the last part of a ref, and no digest of a release."""
    words = [word for word in (text or "").split(" ") if not word.startswith("sha256:")]
    return " ".join(short(word) if is_full_id(word) else _REF.sub("", word) for word in words)
