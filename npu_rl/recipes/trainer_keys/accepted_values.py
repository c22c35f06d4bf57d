"""The accepted values of a key, as far as the code that reads it shows them.

The functions that read a key are followed to where they compare its value with names and raise on any other, or index
a mapping or an enumeration with it. A value is refused if one of them raises on it and none in the tree names it;
every other value is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from npu_rl.recipes.trainer_code.config_tree import ConfigTree
from npu_rl.recipes.trainer_code.source_index import Class, SourceIndex
from npu_rl.recipes.trainer_keys.reading_functions import ReadingFunctions
from npu_rl.recipes.trainer_keys.resolution import RefusedValue
from npu_rl.recipes.trainer_keys.value_flow import ValueFlow, ValueUse
from npu_rl.recipes.trainer_keys.value_guards import GuardedFunction, Refusal

_LIBRARIES = ("megatron/core", "mindspeed", "mindspeed_llm")
_NUMBERS_AT = "__post_init__"
_COMPARED = r"self\.NAME\s*[<>=!]=?|[<>]=?\s*self\.NAME\b|self\.NAME is not None"
_NAME = re.compile(r"[A-Za-z0-9][\w.+,-]{0,63}")

Use = tuple[ValueUse, GuardedFunction]
"""A function that has the value, and what it does with it."""


class AcceptedValues:
    """The accepted values of a configuration's keys in one code folder."""

    def __init__(
        self,
        sources: SourceIndex,
        program: str,
        tree: ConfigTree,
        backends: tuple[str, str] = ("", ""),
        engine: str = "",
    ) -> None:
        """Prepare the search in one code folder.

        Args:
            program: The trainer's file.
            tree: The composed configuration.
            backends: Words in the paths of the backend's files that run, and of the other's that don't.
            engine: The engine of the rollout; empty if any may run.
        """
        self._used = backends[0]
        self._sources = sources
        self._functions = ReadingFunctions(sources, program, backends, engine)
        self._tree = tree
        self._flow = ValueFlow(sources)

    def check_key(self, key: str, value: Any, classes: Collection[Class]) -> RefusedValue | None:
        """Return why a value of a key of the trainer's configuration is refused, or None.

        Args:
            classes: The dataclass of its section, if it has one.
        """
        if _is_unchecked(value):
            return None
        section, _, name = key.rpartition(".")
        entry = self._tree.entries.get(key)
        if entry is not None and entry.value == value:
            return None
        if not isinstance(value, (str, list)):
            return self._check_number(name, value, classes)
        if not _may_be_a_name(value) or _is_named(name, value, self._functions.files.values()):
            return None
        uses = [*self._reading_methods(name, classes), *self._trainer_functions(section, name)]
        return self._check_items(value, uses)

    def check_library_key(self, name: str, value: Any, classes: Collection[Class]) -> RefusedValue | None:
        """Return why a value of a key that is passed to Megatron-core and MindSpeed is refused, or None."""
        if _is_unchecked(value):
            return None
        if not isinstance(value, (str, list)):
            return self._check_number(name, value, classes)
        if not _may_be_a_name(value) or _is_named(name, value, self._library_texts()):
            return None
        return self._check_items(
            value, [*self._reading_methods(name, classes), *self._library_functions(name)]
        )

    def _library_texts(self) -> Iterator[bytes]:
        for folder in _LIBRARIES:
            yield from self._sources.texts(folder).values()

    def _check_number(self, name: str, value: Any, classes: Collection[Class]) -> RefusedValue | None:
        """Return why a class refuses a number in its constructor, or None."""
        compared = re.compile(_COMPARED.replace("NAME", re.escape(name)).encode())
        for module, owner in classes:
            if not compared.search(self._sources.content(module)):
                continue
            for _, function in self._flow.in_class(module, owner, name, _NUMBERS_AT):
                refusal = function.find_refusal(value)
                if refusal and refusal.certain:
                    return RefusedValue(value, (), f"{module.file}:{refusal.line}", True)
        return None

    def _reading_methods(self, name: str, classes: Collection[Class]) -> Iterator[Use]:
        for module, owner in classes:
            yield from self._flow.in_class(module, owner, name)

    def _trainer_functions(self, section: str, name: str) -> Iterator[Use]:
        last = section.rpartition(".")[2]
        unique = all(holder.rpartition(".")[2] == last for holder in self._tree.holders(name))
        for use in self._functions.in_trainer(section, name, unique):
            yield from self._flow.follow(use)

    def _library_functions(self, name: str) -> Iterator[Use]:
        for folder in _LIBRARIES:
            for use in self._functions.in_library(folder, name):
                yield from self._flow.follow(use)

    def _check_items(self, value: str | list[Any], uses: Collection[Use]) -> RefusedValue | None:
        items = value if isinstance(value, list) else [value]
        for item in items:
            given = [item] if isinstance(value, list) else item
            if isinstance(item, str) and (refused := self._check_item(item, given, uses)):
                return refused
        return None

    def _check_item(self, item: str, given: str | list[str], uses: Collection[Use]) -> RefusedValue | None:
        first: tuple[ValueUse, Refusal] | None = None
        accepted: dict[str, None] = {}
        for use, function in uses:
            refusal = function.find_refusal(_without(given, use.cut))
            if refusal and (first is None or self._is_nearer(use, first[0])):
                first = (use, refusal)
            for name in function.compared_names():
                as_given = [name] if isinstance(given, list) else name
                if not (refusal and function.find_refusal(as_given)):
                    accepted[name] = None
        if first is None or _without(item, first[0].cut) in accepted or not accepted:
            return None
        use, refusal = first
        return RefusedValue(item, tuple(accepted), f"{use.module.file}:{refusal.line}", refusal.certain)

    def _is_nearer(self, one: ValueUse, other: ValueUse) -> bool:
        """Return whether the first file belongs to the backend in use and the other doesn't."""
        return self._used in one.module.file and self._used not in other.module.file


def _without(value: Any, ending: str) -> Any:
    """Remove an ending that the code cuts off from a string or a list of strings."""
    if isinstance(value, list):
        return [_without(item, ending) for item in value]
    return value.removesuffix(ending) if isinstance(value, str) else value


def _is_unchecked(value: Any) -> bool:
    """Return whether a value isn't checked: null, a mapping, or a Hydra interpolation."""
    return value is None or isinstance(value, dict) or (isinstance(value, str) and "${" in value)


def _may_be_a_name(value: str | list[Any]) -> bool:
    """Return whether a value looks like a name that code might compare with, not like a path or a sentence."""
    items = value if isinstance(value, list) else [value]
    return all(isinstance(item, str) and _NAME.fullmatch(item) for item in items)


def _is_named(name: str, value: str | list[Any], texts: Iterable[bytes]) -> bool:
    """Return whether any line compares the key with the value. Fast, since it needs no syntax tree."""
    if not isinstance(value, str):
        return False
    text = rf"['\"]{re.escape(value)}['\"]"
    key = rf"\b{re.escape(name)}\b['\")\]]*\s*"
    equal = rf"{key}==\s*{text}[^\n]{{0,500}}\n(?!(?:\s*#[^\n]*\n)*\s*raise\b)"  # else it is named only to be refused
    member = rf"(?m:^[ \t]+[A-Z][A-Z_0-9]* = {text}$)"  # of an enumeration in a file that has the key
    line = re.compile(rf"{equal}|{key}(?:not\s+)?in\b[^\n]{{0,500}}{text}|{member}".encode())
    return any(value.encode() in text and name.encode() in text and line.search(text) for text in texts)
