"""Resolution of a trainer's keys: in its composed configuration, in a section's dataclass, or in the code around it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from npu_rl.common.yaml_documents.suggest import nearest
from npu_rl.recipes.trainer_code.compose_config import compose_config
from npu_rl.recipes.trainer_code.config_location import ConfigLocation
from npu_rl.recipes.trainer_code.config_tree import ConfigTree
from npu_rl.recipes.trainer_code.source_files import read_source
from npu_rl.recipes.trainer_code.source_index import SourceField, SourceIndex
from npu_rl.recipes.trainer_keys.open_sections import Names, OpenSections

_IMPORT = re.compile(rb"^\s*(?:from|import)\s+(\w+)", re.M)
_MOST_BASES = 20
_NAME = re.compile(rb"[A-Za-z_]\w*")
# `section.name`, `section_config["name"]`, `section.get("name")`, `getattr(section, "name")`
_READ = rb"""%s(?:_?config|_?cfg)?(?:\.|\[["']|\.get\(\s*["']|,\s*["'])%s\b"""
_MAPPING = re.compile(r"\b(?:[Dd]ict|Mapping)\b")


@dataclass(frozen=True)
class KeyResolution:
    """Facts about a key.

    Attributes:
        known: Whether the trainer or a library that it passes the key to has it.
        message: The error for an unknown key.
        section: Whether it holds keys, not a value.
        right: The trainer's key that was probably meant, dotted; empty if there is none.
    """

    known: bool
    message: str = ""
    section: bool = False
    right: str = ""


class KeyResolver:
    """Resolver of the keys of one configuration in a code folder.

    Attributes:
        tree: The composed configuration.
        sources: The modules of the folder, parsed on demand.
        unchecked: Sections whose keys can't be checked here, with the name of what reads them.
    """

    def __init__(
        self, code: Path, location: ConfigLocation, settings: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Compose the configuration. Raises ConfigFault if it can't be composed.

        Args:
            code: The code folder.
            location: The trainer's entry point and its Hydra configuration.
            settings: The recipe's settings, as Hydra reads them.
        """
        self.tree: ConfigTree = compose_config(code, location, settings)
        self.sources = SourceIndex(code)
        self.unchecked: dict[str, str] = {}
        self._code = code
        self._module = location.module

    def resolve(self, key: str) -> KeyResolution:
        """Resolve a key. A section whose keys can't be checked is added to `unchecked`."""
        if key.startswith("hydra."):
            return KeyResolution(True)
        if key in self.tree.entries:
            return KeyResolution(True, section=self.tree.entries[key].section)
        section, _, name = key.rpartition(".")
        if (found := self._open_sections.names_in(section)) is not None:
            return self._in_library(section, name, found)
        around = self._around(section)
        entry = self.tree.entries.get(around)
        if entry is not None and not entry.section and entry.value is not None and not entry.interpolation:
            return KeyResolution(False, f"unknown key {key}: {around} is a value, not a section")
        if entry is not None and self._is_open(around):
            self.unchecked.setdefault(around, "the trainer passes them on")
            return KeyResolution(True)
        return self._in_trainer(key, around)

    def is_library_section(self, key: str) -> bool:
        """Return whether a library reads the names below a key."""
        return self._open_sections.names_in(key) is not None

    def names_around(self, dotted: str) -> frozenset[str]:
        """Return every name in the files of a class and its bases; empty if the code has no such class."""
        names: set[str] = set()
        waiting = [self.sources.find_class(dotted)]
        for found in waiting:
            if found is not None and len(waiting) < _MOST_BASES:
                names.update(map(bytes.decode, _NAME.findall(self.sources.content(found[0]))))
                waiting += [self.sources.find_class_expression(found[0], base) for base in found[1].bases]
        return frozenset(names)

    def _around(self, section: str) -> str:
        """Return the deepest section around a key that the configuration has; "" is the top."""
        while section and section not in self.tree.entries:
            section = section.rpartition(".")[0]
        return section

    def _is_open(self, section: str) -> bool:
        """Return whether the trainer leaves a section's keys open: empty, or a mapping of its section's class."""
        if not self.tree.children(section):
            return True
        above, _, name = section.rpartition(".")
        fields = self._fields(above)
        annotation = fields[name].annotation if fields and name in fields else None
        return annotation is not None and _MAPPING.search(ast.unparse(annotation)) is not None

    def _in_library(self, section: str, name: str, found: Names) -> KeyResolution:
        if found.names is None:
            self.unchecked.setdefault(section, f"{found.reader} reads them")
            return KeyResolution(True)
        if name in found.names:
            return KeyResolution(True)
        near = nearest(name, found.names)
        return KeyResolution(
            False, f"{found.reader} has no {name}", right=f"{section}.{near}" if near else ""
        )

    def _in_trainer(self, key: str, around: str) -> KeyResolution:
        """Resolve a key that the configuration lacks: a field of its section's class, or read in the trainer's code."""
        rest = key[len(around) + 1 :] if around else key
        name = rest.partition(".")[0]
        fields = self._fields(around)
        if self._has_field(fields, rest.split(".")) or (name not in fields and self._is_read(around, name)):
            return KeyResolution(True)
        siblings = {*self.tree.children(around), *fields} - {"_target_"}
        elsewhere = [f"{holder}.{rest}".lstrip(".") for holder in self.tree.holders(name)]
        elsewhere = [one for one in elsewhere if one in self.tree.entries]
        near, right = nearest(name, siblings), ""
        if near:
            right = ".".join(filter(None, (around, near, rest.partition(".")[2])))
        elif elsewhere:
            right = min(elsewhere, key=lambda one: (one.split(".")[0] != key.split(".")[0], one))
        if right == key or (right not in self.tree.entries and near not in fields):
            right = ""
        why = "" if right else ": neither the trainer's configuration nor its code has it"
        return KeyResolution(False, f"unknown key {key}{why}", right=right)

    def _is_read(self, section: str, name: str) -> bool:
        """Return whether the trainer's code reads a name of a section, which has to be named right before it.

        `config` will do in a file that is named after the section, and everywhere if no other section has the name.
        """
        own = section.rpartition(".")[2]
        alone = not self.tree.holders(name) and not self._fields(section)
        holders = {own or "config": ""} | ({"config": "" if alone else own} if own else {})
        reads = {
            re.compile(_READ % (re.escape(one).encode(), re.escape(name).encode())): part
            for one, part in holders.items()
        }
        return any(
            part in file and read.search(text)
            for file, text in self._texts.items()
            if name.encode() in text
            for read, part in reads.items()
        )

    def _has_field(self, fields: Mapping[str, SourceField], names: Sequence[str]) -> bool:
        """Return whether a class has a field, and the class of that one the next, as far as they are classes."""
        if names[0] not in fields:
            return False
        below = self._open_sections.class_of(fields[names[0]]) if names[1:] else None
        return below is None or self._has_field(self.sources.fields_of_class(*below), names[1:])

    def _fields(self, section: str) -> Mapping[str, SourceField]:
        target = self.tree.entries.get(f"{section}._target_")
        named = target.value if target else None
        return (self.sources.fields(named) if isinstance(named, str) else None) or {}

    @cached_property
    def _texts(self) -> Mapping[str, bytes]:
        """The files of the packages that the trainer's module is in and imports."""
        file = self._code.joinpath(*self._module.split(".")).with_suffix(".py")
        named = {
            self._module.partition(".")[0],
            *map(bytes.decode, _IMPORT.findall(read_source(file) or b"")),
        }
        texts: dict[str, bytes] = {}
        for package in sorted(named):
            if (self._code / package).is_dir():
                texts |= self.sources.texts(package)
        return texts

    @cached_property
    def _open_sections(self) -> OpenSections:
        return OpenSections(self.sources)
