"""Locking of patches: each is located, applied once, and recorded with its hash and tree."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from npu_rl.common.errors import LockError, PatchError
from npu_rl.stack.compose.apply_patch import run_patch
from npu_rl.stack.compose.build_tree import taken_paths
from npu_rl.stack.compose.composed_unit import LARGEST_PATCH
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.git.objects import EXECUTABLE, FILE
from npu_rl.stack.lock import lock_model
from npu_rl.stack.patches.scan_hunks import CrlfPatchError, Scanner
from npu_rl.stack.patches.series import PatchSource, read_patch, read_patchset, read_patchset_text
from npu_rl.stack.sources.progress import Notify
from npu_rl.stack.store import Store

if TYPE_CHECKING:
    from npu_rl.stack.manifest.load_manifest import LoadedManifest
    from npu_rl.stack.manifest.schema import PatchEntry, ReplacedPatch


TREE = "tree"  # what the assembled tree is called beside the components
_PLAIN = (FILE, EXECUTABLE)


@dataclass(frozen=True)
class Patching:
    """Sources and targets of patches.

    Attributes:
        components: The locked components, without their patches.
        results: Trees of the components that `from:` may name.
    """

    trees: Trees
    store: Store
    loaded: LoadedManifest
    components: Mapping[str, lock_model.LockedComponent]
    results: Mapping[str, str]
    notify: Notify

    def entries(self, component: str) -> Sequence[PatchEntry]:
        """Return the patch entries of a component, or of the assembled tree."""
        manifest = self.loaded.manifest
        return manifest.tree.patches if component == TREE else manifest.components[component].patches


def lock_patches(context: Patching, component: str, tree: str) -> tuple[lock_model.LockedPatch, ...]:
    """Apply the patch entries of a component, or of the assembled tree, to `tree` in order.

    The last patch's `tree` is the result. Notifies of files in a folder that look like patches but are not applied.
    Raises PatchError, LockError, ManifestError.
    """
    taken = (".",) if component == TREE else taken_paths(context.components[component])
    locked: list[lock_model.LockedPatch] = []
    for entry in context.entries(component):
        replaced = _replaced_patch(context, entry.replaces, component) if entry.replaces else ""
        try:
            sources = _find_patches(context, entry, component)
        except PatchError as error:
            raise _in_pinned_component(error, entry, f"{entry.from_}:{entry.path}") from error
        for source, file in sources:
            if len(source.data) > LARGEST_PATCH:
                what = f"The patch {source.name} is too large"
                raise PatchError(what, where=component, why="It is larger than 16 MiB.")
            context.store.keep_file(source.data)
            patch = lock_model.LockedPatch(
                name=_name(source.name, file, {p.name for p in locked}),
                file=file,
                sha256=hashlib.sha256(source.data).hexdigest(),
                tree="",
                hunks=0,
                files=(),
                strip=entry.strip if source.strip is None else source.strip,
                directory=entry.directory,
                # Other patches of the folder may change files with CRLF, which only their hunk lines show.
                eol="lf" if entry.eol == "lf" and _has_crlf(source) else "keep",
                repair=entry.repair if not source.data.endswith(b"\n") else "none",
                replaces=replaced,
            )
            try:
                parsed, tree = run_patch(context.trees, tree, patch, source.data, component, taken)
            except PatchError as error:
                raise _in_pinned_component(error, entry, file) from error
            files = tuple(f.path for f in parsed.files)
            locked.append(replace(patch, tree=tree, hunks=len(parsed.hunks), files=files))
    return tuple(locked)


def _name(name: str, file: str, used: Container[str]) -> str:
    """Return the patch's name: its file's name, with the folder if two files have the same name."""
    stem = PurePosixPath(name).stem
    return stem if stem not in used else file.removeprefix("./").removesuffix(PurePosixPath(name).suffix)


def _in_pinned_component(error: PatchError, entry: PatchEntry, file: str) -> PatchError:
    """Add a usable hint to the error: a file of a component can't be edited at its pin."""
    if entry.from_ is None:
        return error
    copy = (
        f"{file.partition(':')[2]} is a file of {entry.from_} at its pin: to change it, copy it next to the manifest "
        "and name the copy in `patches:` (for a folder, name each patch)."
    )
    hint = f"{error.hint}\n{copy}" if error.hint else copy
    return PatchError(error.what, where=error.where, why=error.why, hint=hint)


def _has_crlf(source: PatchSource) -> bool:
    try:
        Scanner(source.data, source.name).scan()
    except CrlfPatchError:
        return True
    except PatchError:
        return False
    return False


def _replaced_patch(context: Patching, replaced: ReplacedPatch, component: str) -> str:
    """Return "COMPONENT:path" of a replaced patch. Raises LockError unless it is the one that the manifest means."""
    file = f"{replaced.from_}:{replaced.path}"
    found = _from_component(context, replaced.from_, replaced.path, component)
    digests = [hashlib.sha256(source.data).hexdigest() for source, _ in found]
    if digests != [replaced.sha256]:
        raise LockError(
            f"{file}, which a patch of {component} replaces, is another file at this pin",
            where=component,
            why=f"Its SHA-256 is {', '.join(digests)}; `replaces:` has {replaced.sha256}.",
            hint="See whether it still needs to be replaced. If so, write its SHA-256 into `replaces:`.",
        )
    return file


# -- where patches are -----------------------------------------------------------------------------------


def _find_patches(context: Patching, entry: PatchEntry, component: str) -> list[tuple[PatchSource, str]]:
    """Return the patches of an entry, with the names of their files in the lock."""
    if entry.from_ is not None:
        return _from_component(context, entry.from_, entry.path, component)
    place = context.loaded.locate(entry.path)
    own = entry.path.startswith((".", "/"))
    if place.is_dir():
        found = read_patchset(place, lint=not own)
        return [(p, f"{entry.path.rstrip('/')}/{p.name}") for p in found]
    if source := read_patch(place):
        return [(source, entry.path)]
    raise LockError(
        f"The patch {entry.path} does not exist",
        where=component,
        hint="Paths that begin with ./ are relative to the manifest's folder.",
    )


def _from_component(
    context: Patching, origin: str, place: str, component: str
) -> list[tuple[PatchSource, str]]:
    """Return the patches in a file or folder of the component `origin`, for the component that uses them."""
    if origin not in context.results:
        raise LockError(
            f"{component} uses patches from {origin}, which comes after it in the manifest",
            hint=f"Move {origin} before {component}.",
        )
    found = context.trees.find(context.results[origin], place)
    if found is None:
        raise LockError(f"{origin} has no path {place} at its pin", where=component)
    if found.mode in _PLAIN:
        name = place.rpartition("/")[2]
        return [(PatchSource(name, None, context.trees.blob(found.oid)), f"{origin}:{place}")]
    if not found.is_tree:
        raise LockError(f"{place} of {origin} is neither a file nor a folder", where=component)
    files = dict(context.trees.files(found.oid))
    folder = f"{origin}:{place}".removesuffix(":.")
    patches = read_patchset_text(
        {path: file.mode in _PLAIN for path, file in files.items()},
        lambda path: context.trees.blob(files[path].oid),
        where=folder,
    )
    if patches.passed_over:
        context.notify(
            f"note: {component}: these files in {folder} look like patches but are not applied, because `series` "
            "does not list them or they are not plain .patch or .diff files:\n  "
            + "\n  ".join(patches.passed_over)
        )
    prefix = f"{origin}:" + ("" if place == "." else f"{place}/")
    return [(p, prefix + p.name) for p in patches.sources]
