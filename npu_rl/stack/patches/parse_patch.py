"""Parsing of a patch into its files and hunks; an invalid patch is rejected with the line.

The structure and the counts of hunks have been checked by `scan_hunks`; here names, modes and kinds of change are
checked. A patch may not leave the tree, reach into `.git`, change binaries, symlinks, submodules or only modes,
rename or copy.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, cast

from npu_rl.common.errors import UsageError
from npu_rl.stack.patches.file_sections import in_one_section
from npu_rl.stack.patches.patch_model import FilePatch, Hunk, HunkLine, Patch, Tag
from npu_rl.stack.patches.patch_paths import DEV_NULL, FileNames, guarded
from npu_rl.stack.patches.scan_hunks import RawFile, RawHunk, Scanner, malformed

_MODES = ("100644", "100755")
_LINKS = {"120000": "a symlink", "160000": "a submodule"}
# The ids of the empty blob, in SHA-1 and SHA-256.
_EMPTY = (
    b"e69de29bb2d1d6434b8b29ae775ad8c2e48c5391",
    b"473a0f4c3be8a93681a267e3b1e9a7dcda1185436fe141f7749120a303721813",
)
_INDEX = re.compile(rb"([0-9a-f]{4,64})\.\.([0-9a-f]{4,64})(?: (\d{6}))?$")
_BOMS = {b"\xef\xbb\xbf": "UTF-8", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


def parse_patch(
    data: bytes,
    *,
    name: str,
    strip: int = 1,
    directory: str = "",
) -> Patch:
    """Parse a patch as `git diff`, `git format-patch` or GNU `diff -u` write it.

    Args:
        data: The patch.
        name: Its name, for messages.
        strip: Leading folders to drop from names, as `-p` does.
        directory: The folder of the tree that the names are relative to.

    Raises:
        PatchError: If anything is malformed or not allowed, with `name:line`.
    """
    if strip < 0:
        raise UsageError(f"strip is {strip}", where=name, hint="Use 0 or more.")
    _check_bytes(data, name)
    scanner = Scanner(data, name)
    preamble, raw_files = scanner.scan()
    files: list[FilePatch] = []
    at: dict[str, int] = {}  # by path: its place in `files`
    number = 1
    for raw in raw_files:
        where = scanner.where(raw.line)
        names = FileNames(raw, strip, directory, where)
        file = _file(raw, names, name, number)
        if file.path in at:
            files[at[file.path]] = in_one_section(files[at[file.path]], file, where)
        else:
            at[file.path] = len(files)
            files.append(file)
        number += len(raw.hunks)
    header = preamble.decode("utf-8", "replace")
    if len(files) < len(raw_files):
        numbers = itertools.count(1)
        files = [
            replace(file, hunks=tuple(replace(hunk, number=next(numbers)) for hunk in file.hunks))
            for file in files
        ]
    return Patch(name, hashlib.sha256(data).hexdigest(), header, tuple(files))


def _check_bytes(data: bytes, name: str) -> None:
    for mark, encoding in _BOMS.items():
        if data.startswith(mark):
            raise malformed(
                f"The patch begins with a {encoding} byte-order mark",
                f"{name}:1",
                "Some editors and PowerShell's `>` write one; it does not belong to a patch.",
                "Save the patch as UTF-8 without a byte-order mark.",
            )
    nul = data.find(b"\0")
    if nul >= 0:
        where = f"{name}:{data.count(10, 0, nul) + 1}"
        raise malformed("The patch holds a NUL byte", where, "It is not text, or it changes a binary file.")


def _file(raw: RawFile, names: FileNames, name: str, number: int) -> FilePatch:
    where = names.where
    for prefix, word in ((b"rename from ", "renames"), (b"copy from ", "copies")):
        if prefix in raw.extended:
            why = raw.extended[prefix].decode("utf-8", "replace")
            hint = "Write it as a deletion and a new file: `git diff --no-renames`."
            raise malformed(f"The patch {word} a file", where, why, hint)
    path = names.path()
    if (guard := guarded(path)) is not None:
        why = f"A {guard} file changes how git reads the whole tree."
        raise malformed(f"The patch changes {path}", where, why, "Take the file out of the patch.")
    _check_modes(raw, path, where)
    if raw.binary is not None:
        hint = "Patches may only change text; take the file out of the patch."
        raise malformed(f"The patch changes the binary file {path}", f"{name}:{raw.binary}", hint=hint)
    is_new, is_deleted = names.is_new(), names.is_deleted()
    _check_sides(raw, names, is_new, is_deleted, path, where)
    hunks = _hunks(raw, name, number)
    index = _INDEX.match(raw.extended.get(b"index ", b""))
    ids = None if index is None else (index[1].decode(), index[2].decode())
    return FilePatch(path, None if is_new else path, None if is_deleted else path, hunks, raw.line, ids)


def _check_modes(raw: RawFile, path: str, where: str) -> None:
    """Require that every mode in the patch is that of a plain file."""
    named = {k: v.decode("ascii", "replace") for k, v in raw.extended.items() if k.endswith(b"mode ")}
    index = raw.extended.get(b"index ")
    if index is not None:
        found = _INDEX.match(index)
        if found is None:
            raise malformed("An `index` line is malformed", where)
        if found[3] is not None:
            named[b"index "] = found[3].decode()
    for mode in named.values():
        if mode in _LINKS:
            why = f"Mode {mode}. A link can lead anywhere."
            hint = "Take the file out of the patch; name submodules in the manifest instead."
            raise malformed(f"The patch touches {_LINKS[mode]}, {path}", where, why, hint)
        if mode not in _MODES:
            why = f"A file's mode is {_MODES[0]} or {_MODES[1]}."
            raise malformed(f"{path} has mode {mode}", where, why)
    if (b"old mode " in named) != (b"new mode " in named):
        raise malformed("`old mode` and `new mode` must come together", where)


def _check_sides(
    raw: RawFile, names: FileNames, is_new: bool, is_deleted: bool, path: str, where: str
) -> None:
    """Require that a new file has no old side, that a deleted file has no new side, and that something changes."""
    if is_new and is_deleted:
        raise malformed(f"{path} is both new and deleted", where)
    if not raw.hunks:
        _check_empty(raw, is_new, is_deleted, path, where)
        return
    absent = {"old": names.old == DEV_NULL, "new": names.new == DEV_NULL}
    if raw.names is not None and absent != {"old": is_new, "new": is_deleted}:
        why = "`new file mode` goes with `--- /dev/null`, `deleted file mode` with `+++ /dev/null`."
        raise malformed(f"The header of {path} contradicts itself", where, why)
    for gone, word, counts in (
        (is_new, "A new file has no old lines", [h.old_count for h in raw.hunks]),
        (is_deleted, "A deleted file keeps no lines", [h.new_count for h in raw.hunks]),
    ):
        if gone and counts != [0]:
            raise malformed(f"The hunks of {path} contradict its header", where, f"{word}.")


def _check_empty(raw: RawFile, is_new: bool, is_deleted: bool, path: str, where: str) -> None:
    if b"new mode " in raw.extended:
        what, hint = f"The patch only changes the mode of {path}", "Take the file out of the patch."
        raise malformed(what, where, "A patch must change text.", hint)
    found = _INDEX.match(raw.extended.get(b"index ", b""))
    side: Literal[1, 2] = 2 if is_new else 1
    empty = found is None or any(blob.startswith(found[side]) for blob in _EMPTY)
    if not (is_new or is_deleted) or not empty:
        why = "The patch has no hunk for it, so it may be cut off."
        raise malformed(f"The patch names {path} and changes nothing in it", where, why)


def _hunks(raw: RawFile, name: str, number: int) -> tuple[Hunk, ...]:
    """Return the hunks of one file, checked for order and line numbers."""
    hunks: list[Hunk] = []
    for source in raw.hunks:
        hunk = Hunk(
            number + len(hunks),
            source.line,
            source.old_start,
            source.old_count,
            source.new_start,
            source.new_count,
            source.section.decode("utf-8", "replace"),
            _lines(source),
        )
        _check_hunk(hunk, hunks, f"{name}:{source.line}, hunk {hunk.number}")
        hunks.append(hunk)
    return tuple(hunks)


def _lines(source: RawHunk) -> tuple[HunkLine, ...]:
    """Return lines without markers. An empty line is an empty context line that lost its space to an editor."""
    lines: list[HunkLine] = []
    for line in source.body:
        tag = line[:1].decode() or " "
        if tag == "\\":
            lines[-1] = lines[-1]._replace(has_newline=False)
        else:
            lines.append(HunkLine(cast(Tag, tag), line[1:], True))
    return tuple(lines)


def _check_hunk(hunk: Hunk, before: Sequence[Hunk], where: str) -> None:
    if all(line.tag == " " for line in hunk.lines):
        raise malformed("A hunk changes nothing", where)
    if (hunk.old_count and not hunk.old_start) or (hunk.new_count and not hunk.new_start):
        raise malformed("A hunk starts at line 0", where, "Lines count from 1.")
    shift = sum(h.new_count - h.old_count for h in before)
    if before:
        last = before[-1]
        end = last.old_index + last.old_count
        if hunk.old_index < end:
            why = f"Hunk {last.number} reaches to line {end} of the old file."
            raise malformed("Hunks overlap or are out of order", where, why)
        if not all(line.has_newline for line in last.lines):
            why = f"Hunk {last.number} holds a `\\ No newline at end of file`."
            raise malformed("A hunk follows the end of the file", where, why)
    if hunk.new_index != hunk.old_index + shift:
        right = hunk.old_index + shift + (1 if hunk.new_count else 0)
        raise malformed(
            "The line numbers of a hunk contradict each other",
            where,
            f"After the hunks above, its new side starts at line {right}, not {hunk.new_start}; "
            "the two sides name different places.",
        )
