"""Placement of a series' patches in the manifest's entries and their files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from npu_rl.common.errors import PatchError
from npu_rl.stack.lock.lock_model import LockedPatch
from npu_rl.stack.patches.patch_names import number_of_file
from npu_rl.workspace.export.manifest_entries import AGAIN, EntryFiles
from npu_rl.workspace.export.series_of_component import SeriesPatch


@dataclass
class PlacedEntry:
    """An existing or new manifest entry, with its intended patches in order, by file name.

    Attributes:
        new_path: The folder of a new entry, or of the copy that takes the place of a bundled patchset.
        dropped: The patches that it has and the history has not any more, by the names of their files.
    """

    entry: EntryFiles | None
    patches: dict[str, SeriesPatch] = field(default_factory=dict)
    new_path: str = ""
    dropped: dict[str, LockedPatch] = field(default_factory=dict)

    @property
    def is_removed(self) -> bool:
        """Return whether the entry is removed from the manifest, because all its patches are dropped."""
        if self.entry is None or self.patches or not self.dropped:
            return False
        return not (self.entry.is_folder and self.entry.is_own)

    @property
    def is_bundled(self) -> bool:
        """Return whether the entry is a bundled patchset."""
        return self.entry is not None and self.entry.entry.from_ is None and not self.entry.is_own


def place_series(
    series: Sequence[SeriesPatch],
    entries: Sequence[EntryFiles],
    changed: frozenset[str],
    new_folder: Callable[[str], str],
) -> list[PlacedEntry]:
    """Return the entries of a component with its patches.

    Args:
        changed: The names of the locked patches whose text is another.
        new_folder: Returns a free path for a bundled patchset, or for "" a new entry.

    Raises:
        PatchError: If the history has a patch that the manifest has not, one was dropped that can't be taken out, or
            entries can't have the order.
    """
    where = _places(series, entries)
    in_history = {patch.locked.name for patch in series if patch.locked is not None}
    slots = _slots(series, entries, where, changed)
    placed = [PlacedEntry(entry, dropped=_dropped(entry, in_history)) for entry in entries]
    if len(entries) in slots:
        placed.append(PlacedEntry(None))
    for slot, patch in zip(slots, series, strict=True):
        one = placed[slot]
        one.patches[_file_name(patch, one)] = patch
    for one in placed:
        if one.entry is None:
            one.new_path = new_folder("")
        elif one.is_removed:
            _check_removable(one)
        elif _is_rewritten(one, changed):
            _check_writable(one)
            one.new_path = new_folder(one.entry.entry.path) if one.is_bundled else ""
    return placed


def _dropped(entry: EntryFiles, in_history: Collection[str]) -> dict[str, LockedPatch]:
    return {name: patch for name, patch in entry.locked.items() if patch.name not in in_history}


def _places(series: Sequence[SeriesPatch], entries: Sequence[EntryFiles]) -> dict[str, int]:
    """Return the entry of each locked patch. Raises PatchError for a patch that only the history has."""
    where = {patch.name: index for index, entry in enumerate(entries) for patch in entry.locked.values()}
    in_history = {patch.locked.name for patch in series if patch.locked is not None}
    for name in sorted(in_history - where.keys()):
        raise PatchError(f"The manifest no longer lists the patch {name}, which code has", hint=AGAIN)
    return where


def _slots(
    series: Sequence[SeriesPatch],
    entries: Sequence[EntryFiles],
    where: Mapping[str, int],
    changed: frozenset[str],
) -> list[int]:
    """Return the entry of each patch; `len(entries)` is a new one."""
    slots: list[int] = []
    for index, patch in enumerate(series):
        if patch.locked is not None:
            slots.append(where[patch.locked.name])
        else:
            later = [where[p.locked.name] for p in series[index:] if p.locked is not None]
            slots.append(
                _slot_between(patch, slots, later, entries) if later else _last_slot(entries, changed)
            )
    for before, after, patch in zip(slots, slots[1:], series[1:], strict=False):
        if after < before:
            raise PatchError(
                f"The patch {patch.slug} was moved before patches of another entry of the manifest",
                where=str(patch.step.commit),
                hint="Move the entries of `patches:` instead, then run npu-rl lock and npu-rl setup.",
            )
    return slots


def _last_slot(entries: Sequence[EntryFiles], changed: frozenset[str]) -> int:
    """Return the last entry's index if new patches can be added to its folder, else that of a new entry."""
    if not entries or not entries[-1].is_folder:
        return len(entries)
    last = entries[-1]
    copied = any(patch.name in changed for patch in last.locked.values())
    is_own = last.is_own and not last.is_inherited  # another stack has an inherited folder, too
    return len(entries) - 1 if is_own or copied else len(entries)


def _slot_between(
    patch: SeriesPatch, before: Sequence[int], later: Sequence[int], entries: Sequence[EntryFiles]
) -> int:
    for slot in (*before[-1:], later[0]):
        if entries[slot].is_folder:
            return slot
    raise PatchError(
        f"{patch.step.commit} is between patches that are single files",
        where=f"before {entries[later[0]].entry.path}",
        hint="Move it to the end of the list of git rebase -i.",
    )


def _file_name(patch: SeriesPatch, one: PlacedEntry) -> str:
    """Return the file name of a patch in its entry. A new patch gets the next number."""
    if patch.locked is not None and one.entry is not None:
        return next(name for name, locked in one.entry.locked.items() if locked is patch.locked)
    kept = [name for name in (one.entry.locked if one.entry else ()) if name not in one.dropped]
    numbers = [number_of_file(name) for name in (*one.patches, *kept)]
    return f"{max(numbers, default=0) + 1:04d}-{patch.slug}.patch"


def _is_rewritten(one: PlacedEntry, changed: frozenset[str]) -> bool:
    """Return whether the entry gets a new or changed patch, or another order."""
    assert one.entry is not None
    names = [patch.locked.name if patch.locked is not None else "" for patch in one.patches.values()]
    if "" in names or changed & set(names):
        return True
    return names != [patch.name for patch in one.entry.locked.values()]


def _check_removable(one: PlacedEntry) -> None:
    assert one.entry is not None
    if one.entry.entry.replaces is not None:
        raise PatchError(
            f"The patch {one.entry.entry.path} was dropped, which stands in for a patch of a component",
            why="Without the entry that patch would be applied, and the tree would differ from yours.",
            hint="Take both entries out of the manifest, or go back with git reflog.",
        )


def _check_writable(one: PlacedEntry) -> None:
    assert one.entry is not None
    entry = one.entry.entry
    if one.dropped and one.entry.is_own and one.entry.is_inherited:
        raise PatchError(
            f"The patch {next(iter(one.dropped))} was dropped, and {entry.path} belongs to the manifest that this one "
            "extends",
            hint="Export with that manifest (--manifest), or list the other patches in `patches:` of this one, run "
            "npu-rl lock and npu-rl setup, and export.",
        )
    if entry.from_ is not None:
        raise PatchError(
            f"{entry.path} is a file of {entry.from_} at its pin, and can't be changed",
            hint="Copy the patch next to the manifest and name the copy in `patches:` (for a folder, name each patch), "
            "then run npu-rl lock and npu-rl setup, and export.",
        )
    if entry.exclude:
        raise PatchError(
            f"{entry.path} leaves files out with `exclude:`, so its text can't be written again",
            hint="Take the files out of the patch, remove `exclude:`, run npu-rl lock and npu-rl setup, then export.",
        )
