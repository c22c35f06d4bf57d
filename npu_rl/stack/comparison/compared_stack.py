"""One side of a comparison: a stack from its lock, or from its manifest without a lock."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.common.errors import ManifestError
from npu_rl.common.masking import masked_value
from npu_rl.stack.lock import lock_model
from npu_rl.stack.lock.lock_model import Lock, LockedBuild, LockedComponent, LockedPatch, LockedSource
from npu_rl.stack.manifest.load_manifest import LoadedManifest, load_manifest
from npu_rl.stack.manifest.manifest_kind import find_manifest
from npu_rl.stack.patches.series import read_patch, read_patchset
from npu_rl.stack.resolve.refs import is_full_id
from npu_rl.stack.sources.progress import Notify

if TYPE_CHECKING:
    from npu_rl.stack.manifest.schema import BuildStep, Component, PatchEntry

_LOCK_SUFFIX = ".lock.json"


@dataclass(frozen=True)
class ComparedPatch:
    """One patch.

    Attributes:
        file: Where its text is, as a lock has it.
        sha256: Digest of its bytes; None for an unlocked patch in a component's tree.
        options: How it is applied, apart from the defaults.
    """

    name: str
    file: str
    sha256: str | None
    options: Mapping[str, str]


@dataclass(frozen=True)
class ComparedComponent:
    """One component.

    Attributes:
        pin: A commit id, or a release; None for an unresolved ref.
        is_commit: Whether the pin is a commit id.
        merges: By ref, how it is applied, and its head, which is None for an unresolved ref.
        takes: "FROM -> TO".
        paths: The paths that are taken, in the component.
        others: Everything else that a lock would have, by name.
    """

    pin: str | None
    is_commit: bool
    ref: str | None
    sources: tuple[LockedSource, ...]
    merges: Mapping[str, tuple[str, str | None]]
    takes: tuple[str, ...]
    paths: tuple[str, ...]
    patches: tuple[ComparedPatch, ...]
    others: Mapping[str, str]


@dataclass(frozen=True)
class ComparedStack:
    """A stack.

    Attributes:
        path: The lock or manifest that was read.
        folder: The folder that the paths of bundles are relative to.
        digest: The lock's digest; None for a manifest without a lock.
        tree, runtime: The ids of the code tree, and of npu_rl_runtime in it; None for a manifest without a lock.
        requirements: Requirements by the package's normalized name.
    """

    name: str
    path: Path
    folder: Path
    digest: str | None
    tree: str | None
    runtime: str | None
    device: str
    components: Mapping[str, ComparedComponent]
    tree_patches: tuple[ComparedPatch, ...]
    requirements: Mapping[str, str]
    env: Mapping[str, str]
    host: Mapping[str, str]


def read_stack(name_or_path: str, notify: Notify) -> ComparedStack:
    """Return a stack by the name or path of its manifest, or the path of its lock.

    Notifies of a manifest that is newer than its lock, and of one without a lock.

    Raises:
        ManifestError, LockError, PatchError: If it can't be read.
    """
    if name_or_path.endswith(_LOCK_SUFFIX) or _is_lock(Path(name_or_path)):
        path = Path(name_or_path)
        return _of_lock(lock_model.read(path), path)
    manifest = find_manifest(name_or_path)
    path = lock_model.lock_path(manifest)
    loaded = load_manifest(name_or_path)
    if not path.exists():
        notify(
            f"note: {manifest.name} has no lock, so it is compared as it is written; to make one: "
            f"npu-rl lock --manifest {name_or_path}"
        )
        return _of_manifest(loaded)
    lock = lock_model.read(path)
    if lock.manifest_digest != loaded.digest:
        notify(f"note: {manifest.name} has changed since its lock was made; the lock is what is compared.")
    return _of_lock(lock, path)


def _is_lock(path: Path) -> bool:
    try:
        return path.is_file() and lock_model.begins_as_lock(path)
    except OSError:
        return False


# -- a lock --------------------------------------------------------------------------------------------


def _of_lock(lock: Lock, path: Path) -> ComparedStack:
    return ComparedStack(
        name=lock.manifest,
        path=path,
        folder=path.absolute().parent,
        digest=lock_model.digest_of(lock),
        tree=lock.tree,
        runtime=lock.runtime,
        device=lock.device,
        components={name: _locked_component(one) for name, one in lock.components.items()},
        tree_patches=_locked_patches(lock.tree_patches),
        requirements=_by_package(lock.requirements),
        env=lock.env,
        host=lock.host,
    )


def _locked_component(one: LockedComponent) -> ComparedComponent:
    others = {"sources": _shown_sources(one.sources), "checkout": one.checkout}
    others |= {f"submodule {module.path}": module.pin for module in one.submodules}
    others |= _builds(one.build)
    if one.dist is not None:
        others |= _dist(one.dist.name, one.dist.version, one.dist.entry_points)
    others |= {f"skipped submodule {path}": "yes" for path in one.skipped}
    return ComparedComponent(
        pin=one.shown_pin(),
        is_commit=one.pin is not None,
        ref=one.ref,
        sources=one.sources,
        merges={merge.ref: (merge.how, merge.head) for merge in one.merges},
        takes=tuple(f"{take.path} -> {take.to}" for take in one.take),
        paths=tuple(take.path for take in one.take),
        patches=_locked_patches(one.patches),
        others=others,
    )


def _builds(steps: Sequence[LockedBuild | BuildStep]) -> dict[str, str]:
    """Return each build command with its variables and products, by its number."""
    shown = {}
    for number, step in enumerate(steps, 1):
        env = [f"{name}={masked_value(name, value)}" for name, value in step.env.items()]
        shown[f"build {number}"] = f"{' '.join([*env, *step.run])} -> {', '.join(step.products)}"
    return shown


def _locked_patches(patches: Iterable[LockedPatch]) -> tuple[ComparedPatch, ...]:
    return tuple(ComparedPatch(p.name, p.file, p.sha256, _locked_options(p)) for p in patches)


def _locked_options(patch: LockedPatch) -> dict[str, str]:
    offsets = ", ".join(f"hunk {hunk} by {lines}" for hunk, lines in patch.offsets.items())
    return {"offsets": offsets, **_options(patch)} if offsets else _options(patch)


def _options(patch: LockedPatch | PatchEntry) -> dict[str, str]:
    """Return the options of a patch that are not the defaults."""
    replaced = patch.replaces
    replaces = (
        replaced if isinstance(replaced, str) else f"{replaced.from_}:{replaced.path}" if replaced else ""
    )
    found = {
        "strip": "" if patch.strip == 1 else str(patch.strip),
        "directory": patch.directory,
        "exclude": ", ".join(patch.exclude),
        "eol": patch.eol.replace("keep", ""),
        "repair": patch.repair.replace("none", ""),
        "replaces": replaces,
    }
    return {name: value for name, value in found.items() if value}


# -- a manifest without a lock ---------------------------------------------------------------------------


def _of_manifest(loaded: LoadedManifest) -> ComparedStack:
    manifest = loaded.manifest
    return ComparedStack(
        name=manifest.name,
        path=loaded.path,
        folder=loaded.path.parent,
        digest=None,
        tree=None,
        runtime=None,
        device=manifest.device,
        components={name: _written_component(loaded, one) for name, one in manifest.components.items()},
        tree_patches=tuple(_written_patches(loaded, manifest.tree.patches)),
        requirements=_by_package(manifest.requirements),
        env=manifest.env,
        host={key: value for key, value in manifest.host.model_dump().items() if value is not None},
    )


def _written_component(loaded: LoadedManifest, one: Component) -> ComparedComponent:
    releases = [source.pypi for source in one.sources if source.pypi]
    is_commit = one.ref is not None and is_full_id(one.ref)
    sources = tuple(LockedSource(git=s.git, pypi=s.pypi, bundle=s.bundle) for s in one.sources)
    others = {"sources": _shown_sources(sources), "checkout": one.checkout}
    others |= {f"submodule {path}": module.ref for path, module in one.submodules.items()}
    others |= _builds(one.build)
    if one.dist is not None:
        others |= _dist(one.dist.name, one.dist.version, one.dist.entry_points)
    return ComparedComponent(
        pin=one.ref if is_commit else releases[0] if one.ref is None and releases else None,
        is_commit=is_commit,
        ref=one.ref,
        sources=sources,
        merges={merge.ref: (merge.how, merge.ref if is_full_id(merge.ref) else None) for merge in one.merge},
        takes=tuple(f"{take.from_} -> {take.to}" for take in one.take),
        paths=tuple(take.from_ for take in one.take),
        patches=tuple(_written_patches(loaded, one.patches)),
        others=others,
    )


def _written_patches(loaded: LoadedManifest, entries: Iterable[PatchEntry]) -> Iterator[ComparedPatch]:
    for entry in entries:
        if entry.from_ is not None:
            file = f"{entry.from_}:{entry.path}"
            yield ComparedPatch(file, file, None, _options(entry))
            continue
        place = loaded.locate(entry.path)
        folder = f"{entry.path.rstrip('/')}/" if place.is_dir() else ""
        single = None if folder else read_patch(place)
        if not folder and single is None:
            raise ManifestError(
                f"The patch {entry.path} does not exist",
                where=str(loaded.path),
                hint="Correct the path, or remove it.",
            )
        for source in (single,) if single is not None else read_patchset(place):
            file = f"{folder}{source.name}" if folder else entry.path
            digest = hashlib.sha256(source.data).hexdigest()
            yield ComparedPatch(Path(source.name).stem, file, digest, _options(entry))


# -- both ------------------------------------------------------------------------------------------------


def _shown_sources(sources: Iterable[LockedSource]) -> str:
    return ", ".join(source.shown() for source in sources)


def _dist(name: str, version: str, points: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    named = {
        f"entry point {group} {key}": value for group, inner in points.items() for key, value in inner.items()
    }
    return {"dist": f"{name} {version}", **named}


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
