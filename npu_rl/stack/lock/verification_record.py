"""The verification record of a bundled manifest: its tree, and each step that was run against the upstreams.

`.ci/maintenance/verify_stack NAME` writes NAME.verified.json beside the lock, and `manifests list` shows it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from npu_rl.common.bounded import read_json
from npu_rl.common.bundled import bundled_manifests, data_root
from npu_rl.common.errors import LockError
from npu_rl.common.yaml_documents.file_digests import BUNDLED, read_bounded, sha256
from npu_rl.stack.lock import lock_fields as t
from npu_rl.stack.lock import lock_model
from npu_rl.stack.lock.lock_fields import UnexpectedShape, build, plain

RECORD_FORMAT = 1
MAXIMUM_SIZE = 1024 * 1024  # bytes
REHEARSAL = "rehearse "  # what the name of a rehearsal's step begins with


@dataclass(frozen=True)
class VerifiedStep:
    """One command that was run.

    Attributes:
        name: Such as "verify --deep"; of a rehearsal REHEARSAL and its level.
        date: UTC.
        reason: Reason of its failure, in one line.
    """

    name: t.Text
    outcome: t.Outcome
    date: t.Day
    seconds: float
    reason: str = ""

    @property
    def passed(self) -> bool:
        """Return whether the command exited with 0."""
        return self.outcome == "passed"


@dataclass(frozen=True)
class VerifiedRecipe:
    """The steps of one recipe. files: SHA-256 of the recipe and its parents, by portable name."""

    files: dict[str, t.Sha256]
    steps: tuple[VerifiedStep, ...] = ()

    @property
    def is_current(self) -> bool:
        """Return whether the recipe's files still have the bytes that were verified."""
        return all(map(_is_unchanged, self.files, self.files.values()))


@dataclass(frozen=True)
class VerificationRecord:
    """The verification of one tree: the manifest's steps, and each recipe's by name."""

    record_format: int
    manifest: t.Name
    tree: t.Id
    steps: tuple[VerifiedStep, ...] = ()
    recipes: dict[t.Name, VerifiedRecipe] = field(default_factory=dict)


@dataclass(frozen=True)
class ListedManifest:
    """A row of `manifests list`.

    Attributes:
        title, device, tree: Those of its lock; None if it is not locked.
        verified: What was verified, of `tree` unless it names another one.
        changed_recipes: The verified recipes that have changed since.
    """

    name: str
    title: str | None
    device: str | None
    tree: str | None
    path: Path
    verified: VerificationRecord | None
    changed_recipes: tuple[str, ...]


def listed_manifests() -> list[ListedManifest]:
    """Return the bundled manifests. Raises LockError for a damaged record."""
    rows = []
    for name, path in bundled_manifests().items():
        title = device = tree = None
        with suppress(LockError):
            lock = lock_model.read(lock_model.lock_path(path))
            title, device, tree = lock.title, lock.device, lock.tree
        record = read_record(record_path(path))
        recipes = {} if record is None else record.recipes
        changed = tuple(recipe for recipe, one in recipes.items() if not one.is_current)
        rows.append(ListedManifest(name, title, device, tree, path, record, changed))
    return rows


def _is_unchanged(name: str, digest: str) -> bool:
    """Return whether a bundled recipe file has this digest."""
    file = name.removeprefix(BUNDLED)
    if file == name or "/" in file:
        return False
    try:
        return sha256(read_bounded(data_root() / "recipes" / file)) == digest
    except (OSError, ValueError):
        return False


def record_path(manifest_path: Path) -> Path:
    """Return the path of a manifest's record: NAME.verified.json next to NAME.yaml."""
    return manifest_path.with_name(manifest_path.stem + ".verified.json")


def read_record(path: Path) -> VerificationRecord | None:
    """Read a record; None if it is missing. Raises LockError if it is damaged."""
    name = path.name.removesuffix(".verified.json")
    hint = f"Restore it from version control, or make a new one: .ci/maintenance/verify_stack {name}"
    try:
        data = read_json(path, MAXIMUM_SIZE)
        if not isinstance(data, Mapping) or data.get("record_format") != RECORD_FORMAT:
            raise UnexpectedShape(f"record_format: expected {RECORD_FORMAT}")
        record: VerificationRecord = build(VerificationRecord, data, "record")
        return record
    except FileNotFoundError:
        return None
    except (OSError, ValueError, UnexpectedShape) as error:
        raise LockError(
            "A record of what was verified can't be read", where=str(path), why=str(error), hint=hint
        ) from error


def dump_record(record: VerificationRecord) -> str:
    """Return the record as JSON text."""
    return json.dumps(plain(record), indent=1, ensure_ascii=False) + "\n"
