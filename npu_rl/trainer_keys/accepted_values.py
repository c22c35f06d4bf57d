"""The values that the code which reads a key accepts, where the code itself shows them.

A key's readers are followed to where they compare its value with names and raise on any other, or index a mapping
or an enumeration with it (`value_flow`, `value_guards`). A value is refused if one reader raises on it and none in
the tree names it; what no reader refuses is accepted without a word.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from npu_rl.trainer_code.config_tree import ConfigTree
from npu_rl.trainer_code.source_index import Module, Sources
from npu_rl.trainer_keys.reading_functions import KeyUses
from npu_rl.trainer_keys.resolution import Refused
from npu_rl.trainer_keys.value_flow import ValueFlow, ValueUse
from npu_rl.trainer_keys.value_guards import Function, Refusal

_LIBRARIES = ("megatron/core", "mindspeed", "mindspeed_llm")
_NUMBERS_AT = "__post_init__"
_COMPARED = r"self\.NAME\s*[<>=!]=?|[<>]=?\s*self\.NAME\b|self\.NAME is not None"
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]{0,63}")

Class = tuple[Module, ast.ClassDef]


class Choices:
    """The accepted values of a configuration's keys in one code folder."""

    def __init__(
        self, sources: Sources, program: str, tree: ConfigTree, backends: tuple[str, str] = ("", "")
    ) -> None:
        """Args: program: the trainer's file. backends: words in the paths of files that run, and that don't."""
        self._used, unused = backends
        self._sources = sources
        self._uses = KeyUses(sources, program, unused)
        self._tree = tree
        self._flow = ValueFlow(sources)

    def of_key(self, key: str, value: Any, classes: Collection[Class]) -> Refused | None:
        """A value of a key of the trainer's configuration. classes: the dataclass of its section, if it has one."""
        if _is_open(value):
            return None
        section, _, name = key.rpartition(".")
        entry = self._tree.entries.get(key)
        if entry is not None and entry.value == value:
            return None
        if not isinstance(value, (str, list)):
            return self._of_classes(name, value, classes)
        if not _may_be_a_name(value) or _is_named(name, value, self._uses.files.values()):
            return None
        return self._refused(value, [*self._methods(name, classes), *self._of_trainer(section, name)])

    def of_library(self, name: str, value: Any, classes: Collection[Class]) -> Refused | None:
        """A value of a key that the trainer hands on to Megatron-core's and MindSpeed's configuration."""
        if _is_open(value):
            return None
        if not isinstance(value, (str, list)):
            return self._of_classes(name, value, classes)
        if not _may_be_a_name(value) or _is_named(name, value, self._texts()):
            return None
        return self._refused(value, [*self._methods(name, classes), *self._of_libraries(name)])

    def _texts(self) -> Iterator[bytes]:
        for folder in _LIBRARIES:
            yield from self._sources.texts(folder).values()

    def _of_classes(self, name: str, value: Any, classes: Collection[Class]) -> Refused | None:
        """A number that a class refuses as soon as it is built with it."""
        compared = re.compile(_COMPARED.replace("NAME", re.escape(name)).encode())
        for module, owner in classes:
            if not compared.search((self._sources.code / module.file).read_bytes()):
                continue
            for _, function in self._flow.of_class(module, owner, name, _NUMBERS_AT):
                refusal = function.refusal(value)
                if refusal and refusal.sure:
                    return Refused(value, (), f"{module.file}:{refusal.line}", True)
        return None

    def _methods(self, name: str, classes: Collection[Class]) -> Iterator[tuple[ValueUse, Function]]:
        for module, owner in classes:
            yield from self._flow.of_class(module, owner, name)

    def _of_trainer(self, section: str, name: str) -> Iterator[tuple[ValueUse, Function]]:
        last = section.rpartition(".")[2]
        unique = all(holder.rpartition(".")[2] == last for holder in self._tree.holders(name))
        for use in self._uses.of_trainer(section, name, unique):
            yield from self._flow.follow(use)

    def _of_libraries(self, name: str) -> Iterator[tuple[ValueUse, Function]]:
        for folder in _LIBRARIES:
            for use in self._uses.of_library(folder, name):
                yield from self._flow.follow(use)

    def _refused(self, value: str | list[Any], uses: Collection[tuple[ValueUse, Function]]) -> Refused | None:
        items = value if isinstance(value, list) else [value]
        for item in items:
            given = [item] if isinstance(value, list) else item
            if isinstance(item, str) and (refused := self._refused_text(item, given, uses)):
                return refused
        return None

    def _refused_text(
        self, item: str, given: str | list[str], uses: Collection[tuple[ValueUse, Function]]
    ) -> Refused | None:
        first: tuple[ValueUse, Refusal] | None = None
        accepted: dict[str, None] = {}
        for use, function in uses:
            refusal = function.refusal(given)
            if refusal and (first is None or self._is_nearer(use, first[0])):
                first = (use, refusal)
            as_given = (lambda name: [name]) if isinstance(given, list) else (lambda name: name)
            names = function.names()
            accepted |= dict.fromkeys(n for n in names if not (refusal and function.refusal(as_given(n))))
        if first is None or item in accepted or not accepted:
            return None
        return Refused(item, tuple(accepted), f"{first[0].module.file}:{first[1].line}", first[1].sure)

    def _is_nearer(self, one: ValueUse, other: ValueUse) -> bool:
        """Whether a file is of the backend that runs, and the other is of any."""
        return self._used in one.module.file and self._used not in other.module.file


def _is_open(value: Any) -> bool:
    """Whether nothing is to be told of a value: null, a mapping, or what Hydra puts in later."""
    return value is None or isinstance(value, dict) or (isinstance(value, str) and "${" in value)


def _may_be_a_name(value: str | list[Any]) -> bool:
    """Whether it could be one of some names that code compares with, and is no path and no sentence."""
    items = value if isinstance(value, list) else [value]
    return all(isinstance(item, str) and _NAME.fullmatch(item) for item in items)


def _is_named(name: str, value: str | list[Any], texts: Iterable[bytes]) -> bool:
    """Whether some line compares the key with the value, which is quickly seen without a syntax tree."""
    if not isinstance(value, str):
        return False
    text = rf"['\"]{re.escape(value)}['\"]"
    key = rf"\b{re.escape(name)}\b['\")\]]*\s*"
    equal = rf"{key}==\s*{text}[^\n]*\n(?!\s*raise\b)"  # else it is named only to be refused
    member = rf"(?m:^[ \t]+[A-Z][A-Z_0-9]* = {text}$)"  # of an enumeration in a file that has the key
    line = re.compile(rf"{equal}|{key}(?:not\s+)?in\b[^\n]*{text}|{member}".encode())
    return any(value.encode() in text and name.encode() in text and line.search(text) for text in texts)
