"""Sentences on the contradictions that keep a manifest's requirements from resolving, the smallest first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from npu_rl.common.errors import LockError
from npu_rl.stack.pylocks.pylock_file import Alone, read_pylock
from npu_rl.stack.pylocks.pylock_targets import pylock_path, targets
from npu_rl.stack.requirements.bound_lines import read_lines
from npu_rl.stack.requirements.contradictions import Contradiction, contradictions, taken_versions

if TYPE_CHECKING:
    from npu_rl.stack.lock.lock_model import Lock
    from npu_rl.stack.manifest.load_manifest import LoadedManifest


@dataclass(frozen=True)
class BoundsExplanation:
    """The contradictions of a stack.

    Attributes:
        sentences: One per contradiction: first those of the components' declared bounds, then those of packages that
            are installed alone.
        bounds: The number of declared bounds that were compared.
        notes: Requirements that were not read, or have no line.
    """

    sentences: tuple[str, ...]
    bounds: int
    notes: tuple[str, ...]


def explanation(loaded: LoadedManifest, lock: Lock) -> BoundsExplanation:
    """Return the contradictions among the bounds in a stack's lock. Nothing is fetched.

    Raises:
        LockError: If the file with the bounds' lines can't be read.
    """
    lines = read_lines(loaded.path, lock)
    taken = taken_versions(loaded)
    found = contradictions(lock, lines)
    notes = []
    if loaded.digest != lock.manifest_digest:
        notes.append(f"{loaded.path.name} has changed since its lock was made, whose bounds are shown")
    for name, component in lock.components.items():
        if component.declares is None:
            notes.append(f"{name}: the lock is of an earlier npu-rl, and has no bounds of it")
        notes += [f"{name}: not read: {reason}" for reason in component.unread]
    if any(place.line is None for one in found for bound in one.bounds for place in bound.places):
        notes.append("the lock has no lines of bounds; files without one are named alone")
    sentences = [_sentence(loaded, one, taken.get(one.package)) for one in found]
    sentences += [f"{one.name} {one.version} is installed alone: {one.why}" for one in _alone(loaded)]
    count = sum(len(texts) for one in lock.components.values() for texts in (one.declares or {}).values())
    return BoundsExplanation(tuple(sentences), count, tuple(notes))


def _sentence(loaded: LoadedManifest, found: Contradiction, taken: str | None) -> str:
    if taken is None:
        return f"{found.package}: {found}."
    named = [
        loaded.where("overrides", number)
        for number, override in enumerate(loaded.manifest.overrides)
        if canonicalize_name(override.package) == found.package
    ]
    why = f", for the reason at {', '.join(dict.fromkeys(named))}" if named else ""
    return f"{found.package}: {found}; the manifest takes {taken}{why}."


def _alone(loaded: LoadedManifest) -> list[Alone]:
    """Return the packages that any of the locks of packages installs alone."""
    manifest = loaded.manifest
    found: dict[str, Alone] = {}
    for target in targets(manifest.device, manifest.host.python):
        try:
            found |= {one.name: one for one in read_pylock(pylock_path(loaded.path, target)).alone}
        except LockError:
            continue
    return list(found.values())
