"""Lookup of the upstream code that `plan`'s rules cite, in a workspace's tree.

A rule that holds for one version of a trainer can be wrong for another. So each rule names the places that it rests
on, and applies only where the tree still has them. A tree may also replace a part at run time, as
cann-recipes-train's verl_patches do (`vLLMRollout.__init__ = __init__`): where the entry point imports such a
package, its text counts in place of the replaced function's. Other ways to replace code are not seen; a rule can be
overruled for those.

Nothing is imported or run. Without a workspace, the manifest's pins are compared with those that a place was read at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from npu_rl.common.bundled import runtime_root
from npu_rl.recipes.trainer_code.source_files import read_source_text, source_files

_RUNTIME = "npu_rl_runtime/"
_PATCHING_PACKAGE = r"\w*(?:patch|plugin|adapt)\w*"
_DEFINED = r"(?:async\s+)?(?:def|class)\s+(\w+)"
_MOST_FILES = 500  # of a patching package; verl_patches has 34


class Place(NamedTuple):
    """A text in one file.

    Attributes:
        file: The path from the code folder.
        text: The text.
        read_at: The pins whose code was read, as a manifest writes them: the beginning of a commit, the last part of
            a ref, or PACKAGE==VERSION. Empty means no version in particular.
        absent: Whether the rule rests on the text not being there.
    """

    file: str
    text: str
    read_at: tuple[str, ...] = ()
    absent: bool = False


class PlaceStatus(NamedTuple):
    """The result of looking up a place in a tree.

    Attributes:
        where: file:line, or the file with a pin; empty for a text that is absent as expected.
        why: Why the place doesn't hold; empty if it does.
    """

    where: str
    why: str = ""

    @property
    def holds(self) -> bool:
        """Return whether the tree has the place."""
        return not self.why


class CitedCode:
    """The code of one workspace, or of a manifest's pins. Each file is read once, on demand."""

    def __init__(self, code: Path | None, pins: Collection[str] = (), module: str = "") -> None:
        """Prepare the lookup without reading files.

        Args:
            code: The workspace's code folder, if there is one.
            pins: The manifest's refs and PyPI requirements.
            module: The trainer's entry point.
        """
        self._code = code
        self._pins = tuple(pins)
        self._module = module
        self._texts: dict[str, str | None] = {}
        self._patching: dict[str, str] | None = None

    def find(self, *places: Place) -> PlaceStatus:
        """Return the first place that holds, or the reason why the first one doesn't."""
        found = [self._find(place) for place in places]
        return next((status for status in found if status.holds), found[0])

    def has(self, *places: Place) -> bool:
        """Return whether any of the places holds."""
        return self.find(*places).holds

    def cite(self, name: str, *places: Place) -> str:
        """Return a name and the first place that holds, in parentheses; only the name if none does."""
        status = self.find(*places)
        return f"({name}, {status.where})" if status.holds and status.where else f"({name})"

    def is_unreadable(self, file: str) -> bool:
        """Return whether a path exists but can't be read as text: a pipe, a link loop, a file of 30 MB."""
        return self.text(file) is None and self._code is not None and os.path.lexists(self._code / file)

    def text(self, file: str) -> str | None:
        """Return the text of a file in the tree; None if it is missing or unreadable, or without a workspace."""
        if file not in self._texts:
            self._texts[file] = self._read(file)
        return self._texts[file]

    def _read(self, file: str) -> str | None:
        if self._code is not None:
            path = self._code / file
        elif file.startswith(_RUNTIME):
            path = runtime_root() / file.removeprefix(_RUNTIME)
        else:
            return None
        try:
            return read_source_text(path)
        except OSError:  # no permission
            return None

    def _find(self, place: Place) -> PlaceStatus:
        if self._code is None and not place.file.startswith(_RUNTIME):
            return self._find_by_pin(place)
        text = self.text(place.file)
        if text is None:
            return PlaceStatus(place.file, f"not in this tree: {place.file}")
        at = text.find(place.text)
        if place.absent:
            return self._find_absent(place, text, at)
        if at < 0:
            return PlaceStatus(place.file, f"not in this tree: {place.text!r} in {place.file}")
        if not self._patching_files():
            return PlaceStatus(_file_and_line(place.file, text, at))
        replaced = self._replacement_of(place.file, _enclosing_function(text, at))
        if replaced is None:
            return PlaceStatus(_file_and_line(place.file, text, at))
        if instead := self._find_in_patching(place.text):
            return PlaceStatus(instead)
        return PlaceStatus(place.file, f"{place.file} is replaced at run time by {replaced}")

    def _find_absent(self, place: Place, text: str, at: int) -> PlaceStatus:
        there = _file_and_line(place.file, text, at) if at >= 0 else self._find_in_patching(place.text)
        return (
            PlaceStatus(place.file, f"this tree has {place.text!r} ({there})") if there else PlaceStatus("")
        )

    def _find_by_pin(self, place: Place) -> PlaceStatus:
        if not place.read_at:
            return PlaceStatus(place.file)
        for wanted in place.read_at:
            if any(_is_pin(pin, wanted) for pin in self._pins):
                return PlaceStatus("" if place.absent else f"{place.file}@{wanted}")
        why = f"{place.file} was read at {place.read_at[0]}, which the manifest doesn't pin"
        return PlaceStatus(place.file, why)

    def _find_in_patching(self, wanted: str) -> str:
        """Return file:line of a text in the packages that monkey-patch code, or ""."""
        for file, text in self._patching_files().items():
            at = text.find(wanted)
            if at >= 0:
                return _file_and_line(file, text, at)
        return ""

    def _replacement_of(self, file: str, name: str) -> str | None:
        """Return file:line where a function of `file` is replaced, or None.

        A wrapper, whose new value calls the old one, does not replace it.
        """
        if not name:
            return None
        stem, own = Path(file).stem, re.escape(name)
        given = re.compile(rf"^[ \t]*((?:\w+\.)*{own})[ \t]*=(?!=)[ \t]*(.*)$", re.MULTILINE)
        for patching, text in self._patching_files().items():
            if stem not in text:
                continue
            for match in given.finditer(text):
                if "." in match[1] and not re.search(rf"\(.*\b{own}\b", match[2]):
                    return _file_and_line(patching, text, match.start(1))
        return None

    def _patching_files(self) -> dict[str, str]:
        """Return the files of top-level packages named after patching that the trainer's entry point imports."""
        if self._patching is None:
            self._patching = dict(self._read_patching()) if self._code is not None and self._module else {}
        return self._patching

    def _read_patching(self) -> Iterator[tuple[str, str]]:
        assert self._code is not None
        package = self._module.partition(".")[0]
        entries = (f"{self._module.replace('.', '/')}.py", f"{package}/__init__.py")
        imports = "\n".join(self.text(entry) or "" for entry in entries)
        for folder in sorted(self._code.iterdir()):
            name = folder.name
            if not (re.fullmatch(_PATCHING_PACKAGE, name) and folder.is_dir() and not folder.is_symlink()):
                continue
            if name != package and not re.search(rf"^\s*(?:from|import)\s+{name}\b", imports, re.MULTILINE):
                continue
            for path in source_files(folder.rglob("*.py"))[:_MOST_FILES]:
                file = path.relative_to(self._code).as_posix()
                text = self.text(file)
                if text is not None:
                    yield file, text


def _enclosing_function(text: str, at: int) -> str:
    """Return the function around a position with its class, `vLLMRollout.__init__`; empty at the top level."""
    names: list[str] = []
    above = text[: text.find("\n", at) if "\n" in text[at:] else len(text)].split("\n")
    indent = _indent(above.pop())
    for line in reversed(above):
        stripped = line.lstrip()
        if not stripped or stripped[0] in "#)]}":  # what closes a signature stands as far out as its def
            continue
        depth = _indent(line)
        if depth < indent:
            indent = depth
            defined = re.match(_DEFINED, stripped)
            if defined:
                names.insert(0, defined[1])
        if indent == 0:
            break
    return ".".join(names)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _is_pin(pin: str, wanted: str) -> bool:
    """Return whether `pin` (a full commit id, refs/... or PACKAGE==VERSION) is the wanted one."""
    return pin == wanted or pin.startswith(wanted) or pin.rpartition("/")[2] == wanted


def _file_and_line(file: str, text: str, at: int) -> str:
    return f"{file}:{text.count(chr(10), 0, at) + 1}"
