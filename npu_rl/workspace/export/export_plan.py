"""Planning of an export, without writing: the files of patches and series, and the manifest's entries."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_rl.common.bounded import read_if_file
from npu_rl.common.errors import PatchError
from npu_rl.common.yaml_documents.text_checks import is_local
from npu_rl.stack.compose.assemble import code_paths
from npu_rl.stack.compose.git_trees import Trees
from npu_rl.stack.compose.write_patch import PatchOptions
from npu_rl.stack.lock.lock_model import Lock, LockedPatch
from npu_rl.stack.patches.patch_names import slug_of_file
from npu_rl.stack.patches.series import SERIES
from npu_rl.stack.patches.series_file import with_names
from npu_rl.stack.patches.written_files import LARGEST
from npu_rl.workspace.export.export_record import digest, key_of
from npu_rl.workspace.export.manifest_edit import ListEdit, PatchItem, edited
from npu_rl.workspace.export.manifest_entries import AGAIN, EntryFiles, entries_of
from npu_rl.workspace.export.patch_writer import changed_lines, diff_part, header_part, patch_text
from npu_rl.workspace.export.placement import PlacedEntry, place_series
from npu_rl.workspace.export.series_of_component import SeriesByComponent, SeriesPatch

if TYPE_CHECKING:
    from npu_rl.stack.manifest.load_manifest import LoadedManifest
    from npu_rl.stack.manifest.schema import PatchEntry


@dataclass(frozen=True)
class ExportedPatch:
    """One patch of a plan.

    Attributes:
        path: Relative to the manifest's folder.
        commit, subject: Empty of a dropped one.
        state: new, changed, unchanged or dropped.
    """

    component: str
    patch: str
    path: str
    commit: str
    subject: str
    state: str


@dataclass
class ExportPlan:
    """Files to write (None: to remove), with patches before the manifest that names them.

    Attributes:
        edited: Files with a header that a user has edited, and that later exports keep.
    """

    patches: list[ExportedPatch] = field(default_factory=list)
    files: dict[Path, bytes | None] = field(default_factory=dict)
    edited: set[Path] = field(default_factory=set)


class ExportPlanner:
    """Planner of an export.

    Args:
        locked_texts: The files of the lock's patches by SHA-256.
        exported: What earlier exports have written, by `export_record.key_of`.
        whole: The components whose patches come from `src/NAME`, which has all of their files.
    """

    def __init__(
        self,
        trees: Trees,
        loaded: LoadedManifest,
        lock: Lock,
        locked_texts: Mapping[str, bytes],
        exported: Mapping[str, frozenset[str]],
        whole: Collection[str] = (),
    ) -> None:
        self._trees, self._loaded, self._lock = trees, loaded, lock
        self._locked_texts, self._exported, self._whole = locked_texts, exported, whole
        self._folder = loaded.path.parent
        self._entries = {name: entries_of(loaded, lock, name) for name in (*lock.components, "tree")}
        self._taken = {
            e.place.resolve() for entries in self._entries.values() for e in entries if e.place is not None
        }
        self._plan = ExportPlan()

    def plan(self, series: SeriesByComponent) -> ExportPlan:
        """Plan the export. Raises PatchError, ManifestError."""
        edits = [
            edit
            for name, patches in series.patches.items()
            if (edit := self._component(name, patches)) is not None
        ]
        if edits:
            manifest = self._loaded.path
            text = read_if_file(manifest, LARGEST) or b""
            self._plan.files[manifest] = edited(text, edits, manifest.name)
        return self._plan

    def _component(self, name: str, series: list[SeriesPatch]) -> ListEdit | None:
        """Plan the patches of a component. Returns the change of its list in the manifest."""
        entries = self._with_returned(series, self._entries[name])
        texts = {p.locked.name: self._locked_text(p, entries) for p in series if p.locked is not None}
        changed = frozenset(
            p.locked.name
            for p in series
            if p.locked and texts[p.locked.name] != self._locked_texts[p.locked.sha256]
        )
        placed = place_series(series, entries, changed, lambda path: self._new_folder(name, path))
        for one in placed:
            self._check_droppable(name, one)
            self._entry(name, one, texts, changed)
            self._drop(name, one)
        removed = frozenset(index for index, one in enumerate(placed) if one.is_removed)
        added = [one.new_path for one in placed if one.entry is None]
        replaced = {index: one.new_path for index, one in enumerate(placed) if one.entry and one.new_path}
        inherited = [_item(one) for one in entries if one.is_inherited]
        return ListEdit(name, inherited, replaced, added, removed) if added or replaced or removed else None

    def _with_returned(self, series: list[SeriesPatch], entries: list[EntryFiles]) -> list[EntryFiles]:
        """Return the entries with patches that an earlier export removed and whose commits are back.

        Raises PatchError for a patch whose entry that export removed, since its place in the list is unknown.
        """
        listed = {patch.name for entry in entries for patch in entry.locked.values()}
        missing = [p.locked for p in series if p.locked is not None and p.locked.name not in listed]
        returned: dict[int, dict[str, LockedPatch]] = {}
        for patch in missing:
            folder, _, file = patch.file.rpartition("/")
            for index, entry in enumerate(entries):
                is_its = entry.is_own and entry.is_folder and entry.entry.path.rstrip("/") == folder
                if is_its and self._is_as_exported(entry.path_of(SERIES)):
                    returned.setdefault(index, {})[file] = patch
                    break
            else:
                self._check_listed(patch)
        return [
            replace(entry, locked={**entry.locked, **returned.get(index, {})})
            for index, entry in enumerate(entries)
        ]

    def _check_listed(self, patch: LockedPatch) -> None:
        """Raise PatchError for a patch that is not listed because an earlier export removed its entry."""
        if self._is_as_exported(self._loaded.path):
            entry = patch.file if is_local(patch.file) else patch.file.rpartition("/")[0]
            raise PatchError(
                f"An earlier export removed the patch {patch.name}, whose commit is back",
                where=str(self._loaded.path),
                hint=f"Enter {entry} in `patches:` again and export, or drop the commit.",
            )

    def _is_as_exported(self, path: Path) -> bool:
        """Return whether a file is as an export, which may have been killed, has written it."""
        data = read_if_file(path, LARGEST)
        return data is not None and self._is_exported(path, data)

    def _locked_text(self, patch: SeriesPatch, entries: list[EntryFiles]) -> bytes:
        """Return the new text of a locked patch."""
        assert patch.locked is not None
        raw = self._locked_texts[patch.locked.sha256]
        if patch.is_unchanged:
            return raw
        old = patch.locked.applied_text(raw)
        entry = next((e.entry for e in entries if patch.locked in e.locked.values()), None)
        text = patch_text(self._trees, patch, old, _options(entry))
        return raw if text == old else text

    def _entry(
        self, name: str, one: PlacedEntry, texts: Mapping[str, bytes], changed: frozenset[str]
    ) -> None:
        """Plan the files of one entry of the manifest."""
        is_rewritten = one.entry is None or bool(one.new_path) or one.entry.is_own
        renumbered: list[Path] = []  # removed last, so that a killed export loses no header
        for file, patch in one.patches.items():
            path = self._path(one, file)
            if patch.locked is not None:
                text, state = (
                    texts[patch.locked.name],
                    "changed" if patch.locked.name in changed else "unchanged",
                )
            else:
                options = _options(one.entry.entry if one.entry else None)
                text, state = patch_text(self._trees, patch, None, options), "new"
                edited_file = self._edited_file(one, file, text)
                if edited_file is not None:
                    text = header_part(read_if_file(edited_file, LARGEST) or text) + diff_part(text)
                    self._plan.edited.add(path)
                    if edited_file == path:
                        state = "unchanged"
                    else:
                        renumbered.append(edited_file)
            if is_rewritten:
                self._put(path, text, patch, [old.sha256 for old in one.dropped.values()])
            commit = patch.step.commit
            self._plan.patches.append(
                ExportedPatch(name, file, self._shown(path), commit.id, commit.subject, state)
            )
        self._plan.files.update(dict.fromkeys(renumbered))
        self._check_known(one)
        if is_rewritten and not one.is_removed and (one.entry is None or one.entry.is_folder):
            self._series(one)

    def _shown(self, path: Path) -> str:
        return path.relative_to(self._folder).as_posix() if path.is_relative_to(self._folder) else str(path)

    def _check_droppable(self, name: str, one: PlacedEntry) -> None:
        """Raise PatchError for a dropped patch with files outside `code`, which would be lost if it was squashed."""
        component = self._lock.components.get(name)
        if component is None or name in self._whole:
            return
        for patch in one.dropped.values():
            elsewhere = [path for path in patch.files if not code_paths(component, path)]
            if elsewhere:
                raise PatchError(
                    f"The history of code lacks the patch {patch.name}, which the manifest lists",
                    why=f"Its commit was dropped, or squashed into another. It also changes {elsewhere[0]}, which code "
                    "does not have.",
                    hint="To remove the patch, take it out of `series` or the manifest, remove its file and export "
                    "again.\nTo keep it, go back with git reflog.",
                )

    def _drop(self, name: str, one: PlacedEntry) -> None:
        """Plan the removal of dropped patches. Only files beside the manifest are removed.

        Raises PatchError for a file that somebody has changed since.
        """
        for file, patch in one.dropped.items():
            assert one.entry is not None
            shown = patch.file
            if one.entry.is_own:
                path = one.entry.path_of(file)
                shown = self._shown(path)
                if path not in self._plan.files and not one.entry.is_inherited:
                    self._check_unchanged(path, patch.sha256)
                    self._plan.files[path] = None
            self._plan.patches.append(ExportedPatch(name, file, shown, "", "", "dropped"))

    def _path(self, one: PlacedEntry, file: str) -> Path:
        if one.new_path:
            return self._folder / one.new_path / file
        assert one.entry is not None
        return one.entry.path_of(file) if one.entry.place is not None else self._folder / file

    def _check_known(self, one: PlacedEntry) -> None:
        """Raise PatchError if the manifest has a patch that is neither the lock's nor an earlier export's."""
        if one.entry is None:
            return
        for name in one.entry.names:
            if name in one.entry.locked:
                continue
            path = one.entry.path_of(name)
            data = read_if_file(path, LARGEST)
            if name in one.patches and self._was_exported(path):
                continue  # its header may have been edited since; `_put` looks at the rest
            if path in self._plan.files and self._plan.files[path] is None:
                continue  # it gets another number
            if self._was_exported(path) and data is not None and not self._is_exported(path, data):
                raise _changed_by_hand(path, "No commit has its diff any more.")
            if not one.entry.is_folder or (data is not None and not self._is_exported(path, data)):
                raise PatchError(
                    f"The manifest lists {name}, which this workspace does not have",
                    where=str(path),
                    hint=AGAIN,
                )
            if name not in one.patches:
                self._plan.files[path] = None

    def _was_exported(self, path: Path) -> bool:
        return key_of(path) in self._exported

    def _edited_file(self, one: PlacedEntry, file: str, text: bytes) -> Path | None:
        """Return the file in which a header was edited after an export wrote it, perhaps under another number."""
        entry, slug = one.entry, slug_of_file(file)
        older = (
            []
            if entry is None
            else [n for n in entry.names if n not in entry.locked and slug_of_file(n) == slug]
        )
        paths = [self._path(one, file), *(self._path(one, name) for name in older)]
        return next((path for path in paths if self._is_reworded(path, text)), None)

    def _is_reworded(self, path: Path, text: bytes) -> bool:
        """Return whether an earlier export's file changes the same lines, under a header that was edited since."""
        found = read_if_file(path, LARGEST)
        if found is None or not self._was_exported(path) or self._is_exported(path, found):
            return False  # a file as it was written follows its commit's message
        return changed_lines(found) == changed_lines(text) != []

    def _put(self, path: Path, text: bytes, patch: SeriesPatch, dropped: Iterable[str]) -> None:
        """Plan a file. Raises PatchError if writing it would lose someone else's changes."""
        is_edited = patch.locked is None and self._is_reworded(path, text)
        if (
            patch.locked is None
            and not is_edited
            and self._was_exported(path)
            and not self._is_free_for(path, text)
        ):
            raise _changed_by_hand(path, "Its diff is no longer that of its commit.")
        if not is_edited and read_if_file(path, LARGEST) != text:
            self._check_unchanged(path, *([patch.locked.sha256] if patch.locked is not None else dropped))
        if self._plan.files.setdefault(path, text) != text:
            raise PatchError(f"Two patches would be written to {path.name}", where=str(path))

    def _is_free_for(self, path: Path, text: bytes) -> bool:
        """Return whether a file may be written: it is missing, or has this text or an earlier export's."""
        found = read_if_file(path, LARGEST)
        return found is None or found == text or self._is_exported(path, found)

    def _check_unchanged(self, path: Path, *locked: str) -> None:
        """Raise PatchError for a file that is neither one of the lock's nor an earlier export's."""
        found = read_if_file(path, LARGEST)
        if found is not None and digest(found) not in locked and not self._is_exported(path, found):
            raise PatchError(
                f"{path.name} is neither the lock's nor an earlier export's",
                where=str(path),
                why="It was changed by hand, or another patch has the name.",
                hint="Rename or remove it. If it is a change of your own, run npu-rl lock and setup, then export.",
            )

    def _is_exported(self, path: Path, data: bytes) -> bool:
        return digest(data) in self._exported.get(key_of(path), frozenset())

    def _series(self, one: PlacedEntry) -> None:
        path = self._path(one, SERIES)
        source = (
            path
            if not one.new_path or one.entry is None or one.entry.place is None
            else one.entry.place / SERIES
        )
        found = read_if_file(source, LARGEST)
        text = "" if found is None else found.decode("utf-8", "surrogateescape")
        data = with_names(text, list(one.patches)).encode("utf-8", "surrogateescape")
        if self._plan.files.setdefault(path, data) != data:
            raise PatchError(
                "A folder of patches belongs to two entries of the manifest",
                where=str(path),
                hint="Give each entry its own folder.",
            )

    def _new_folder(self, component: str, bundled: str) -> str:
        """Return a path beside the manifest that isn't used by an entry or a foreign file."""
        names = [component, *([bundled.replace("/", "-")] if bundled else [])]
        for name in (*names, *(f"{component}-{number}" for number in range(2, 1000))):
            place = self._folder / "patches" / name
            if place.resolve() not in self._taken and all(map(self._is_as_exported, _files_in(place))):
                self._taken.add(place.resolve())
                return f"./patches/{name}"
        raise PatchError(
            f"No folder for the patches of {component} is free", where=str(self._folder / "patches")
        )


def _changed_by_hand(path: Path, why: str) -> PatchError:
    return PatchError(
        f"{path.name} was changed by hand after an export had written it",
        where=str(path),
        why=why,
        hint="Make the change in the commit (git commit --amend), and remove the file, which is written again.",
    )


def _files_in(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from folder.iterdir()
    elif folder.exists() or folder.is_symlink():
        yield folder


def _options(entry: PatchEntry | None) -> PatchOptions:
    return PatchOptions() if entry is None else PatchOptions(entry.strip, entry.directory)


def _item(one: EntryFiles) -> PatchItem:
    """Return an entry in a manifest's form, with scalars as text."""
    plain: dict[str, Any] = _texts(one.entry.model_dump(by_alias=True, exclude_defaults=True))
    return str(plain["path"]) if list(plain) == ["path"] else plain


def _texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _texts(inner) for key, inner in value.items()}
    return [_texts(inner) for inner in value] if isinstance(value, list) else str(value)
