"""A search of the whole new tree for the code that a hunk changed, if its file, class or function is gone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from npu_rl.stack.hunks.hunk_match import find_all
from npu_rl.stack.patches.patch_model import Hunk
from npu_rl.stack.port.file_scopes import FileScopes, is_telling
from npu_rl.stack.port.port_judgement import LikelyPlace, NewVersion

_MOST = 3  # places of a hunk
_SHORTEST = 12  # letters of a line
_CONTEXT = 5  # lines of a place
_LEAST = 0.2  # score of a place that is worth a look
_FUNCTION, _CLASS, _LINES, _FOLDER = 0.3, 0.2, 0.35, 0.15  # what finding each of them counts
_WORDS = 0.6  # what all words of the lines count, in other lines
_MOST_WORDS = 0.6  # share of the words that tells more than the function's name
_WORD = re.compile(rb"[A-Za-z_]\w{5,}")
_DEFINED = rb"^[ \t]*(?:(?:async[ \t]+)?def|class)[ \t]+%s\b"


class PlaceSearch:
    """A search of one version. Files are read once for all hunks of a patch."""

    def __init__(self, version: NewVersion) -> None:
        self._version = version
        self._contents: dict[str, bytes] = {}

    def find(self, hunk: Hunk, inside: str, path: str, renamed: str | None) -> tuple[LikelyPlace, ...]:
        """Return at most three places, the most likely first.

        Args:
            inside: The class and function that the hunk changed.
            path: Its file in the old version; only files of the same kind are searched.
            renamed: The new path of that file, if git detects a rename: it is searched first.
        """
        wanted = _Wanted(hunk, inside, path)
        found = [
            place
            for name, content in self._files(PurePosixPath(path).suffix)
            if (place := wanted.look(name, content)) is not None
        ]
        found.sort(key=lambda place: (place.path != renamed, -place.score, place.path))
        if renamed is not None and (not found or found[0].path != renamed):
            scopes = FileScopes(self._version.read(renamed) or b"", renamed)
            at = next(iter(find_all(scopes.lines, hunk.old_lines)), 0)
            held = [line for line in hunk.old_lines if line in scopes.lines]
            share = round(len(held) / max(len(hunk.old_lines), 1), 2)
            context = b"".join(scopes.lines[at : at + _CONTEXT]).decode("utf-8", "replace")
            found.insert(0, LikelyPlace(renamed, at + 1, scopes.name_at(at), share, context))
        return tuple(found[:_MOST])

    def copy_of(self, content: bytes, path: str) -> str | None:
        """Return the path of another file with the same kind and content, if any."""
        files = self._files(PurePosixPath(path).suffix)
        return next((name for name, other in files if other == content and content.strip()), None)

    def _files(self, suffix: str) -> Iterator[tuple[str, bytes]]:
        if not self._contents:
            for path in self._version.files():
                if path.endswith(suffix):
                    self._contents[path] = self._version.read(path) or b""
        yield from ((path, content) for path, content in self._contents.items() if path.endswith(suffix))


def _is_searched(line: bytes) -> bool:
    """Return whether a line is worth a search of a whole tree, unlike `return k`, which occurs often."""
    return is_telling(line) and len(line.strip()) >= _SHORTEST


class _Wanted:
    """The search terms of a hunk: its class, its function, and the lines that it removes, or else its context."""

    def __init__(self, hunk: Hunk, inside: str, path: str) -> None:
        names = inside.split(".") if inside else []
        self._folders = PurePosixPath(path).parts[:-1]
        self._function = names[-1].encode() if names else None
        self._holder = names[0].encode() if len(names) > 1 else None
        removed = [line for change in hunk.changes() for line in change.removed]
        telling = {line.strip() for line in removed if _is_searched(line)}
        self._lines = telling or {line.strip() for line in hunk.old_lines if _is_searched(line)}
        self._words = {word for line in self._lines for word in _WORD.findall(line)}

    def look(self, path: str, content: bytes) -> LikelyPlace | None:
        """Return the best place in a file; None if it has too little of the hunk."""
        holder = self._defined(self._holder, content)
        function = self._defined(self._function, content)
        if self._is_common and holder is None:
            function = None
        held = [line for line in self._lines if line in content]
        words = [word for word in self._words if word in content]
        is_wordy = bool(self._words) and 2 * len(words) >= len(self._words)
        if function is None and not held and not is_wordy:
            return None
        scopes = FileScopes(content, path)
        at, together = self._densest(scopes.lines, len(held)) if held else (None, 0)
        at_words, of_words = self._wordiest(scopes.lines) if is_wordy else (None, 0.0)
        score = _FUNCTION * (function is not None) + _CLASS * (holder is not None)
        of_lines = together / len(self._lines) if self._lines else 0.0
        if _WORDS * of_words > of_lines:
            at, together, of_lines = at_words, 0, _WORDS * of_words
        score += _LINES * of_lines
        score += _FOLDER * self._nearness(path)
        score /= (
            _FUNCTION * bool(self._function)
            + _CLASS * bool(self._holder)
            + _LINES * bool(self._lines)
            + _FOLDER
        )
        if score < _LEAST:
            return None
        line = (
            at
            if at is not None and (together > 1 or of_words > _MOST_WORDS or function is None)
            else function
        )
        index = line if line is not None else 0
        context = b"".join(scopes.lines[index : index + _CONTEXT]).decode("utf-8", "replace")
        return LikelyPlace(path, index + 1, scopes.name_at(index), round(score, 2), context)

    @property
    def _is_common(self) -> bool:
        """Return whether many classes have a method of this name."""
        return self._function is not None and self._function.startswith(b"__")

    def _nearness(self, path: str) -> float:
        """Return the share of leading folders that a file has in common with the hunk's file, 0 to 1."""
        folders = PurePosixPath(path).parts[:-1]
        shared = sum(1 for one, other in zip(self._folders, folders, strict=False) if one == other)
        return shared / max(len(self._folders), len(folders), 1)

    @staticmethod
    def _defined(name: bytes | None, content: bytes) -> int | None:
        """Return the index of the line that defines a name; None if it is not defined."""
        if name is None or name not in content:
            return None
        found = re.search(_DEFINED % re.escape(name), content, re.M)
        return None if found is None else content.count(b"\n", 0, found.start())

    def _densest(self, lines: Sequence[bytes], most: int) -> tuple[int | None, int]:
        """Return the place where most of the wanted lines are close together, and their number."""
        hits = [(i, line.strip()) for i, line in enumerate(lines) if line.strip() in self._lines]
        best: tuple[int | None, int] = (None, 0)
        span = 4 * len(self._lines) + 10
        for start, (index, _) in enumerate(hits):
            near = {text for i, text in hits[start : start + 4 * most + 8] if i - index <= span}
            if len(near) > best[1]:
                best = index, len(near)
        return best

    def _wordiest(self, lines: Sequence[bytes]) -> tuple[int | None, float]:
        """Return the place where most words of the wanted lines are close together, and their share."""
        span = 2 * len(self._lines) + 6
        hits = [
            (i, found) for i, line in enumerate(lines) if (found := self._words & set(_WORD.findall(line)))
        ]
        best: tuple[int | None, int] = (None, 0)
        for start, (index, _) in enumerate(hits):
            near: set[bytes] = set()
            for i, found in hits[start : start + span]:
                if i - index < span:
                    near |= found
            if len(near) > best[1]:
                best = index, len(near)
        return best[0], best[1] / max(len(self._words), 1)
