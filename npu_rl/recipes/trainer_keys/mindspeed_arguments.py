"""The keys of `override_transformer_config` that MindSpeed reads.

Its `repatch` sets every key of that mapping on its arguments (mindspeed/megatron_adaptor.py@7ff818c4), so a key is
known if MindSpeed declares such an argument or reads an attribute of that name from its arguments or configuration.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from npu_rl.recipes.trainer_code.source_index import SourceIndex
from npu_rl.recipes.trainer_code.syntax_nodes import last_name, text_of
from npu_rl.recipes.trainer_code.value_types import ANY, ExpectedType, named_type

_FOLDER = "mindspeed"
_CHOICE_ADDERS = "add_parser_argument_choices_value"


@dataclass(frozen=True)
class MindSpeedArgument:
    """A declared argument of the command line.

    Attributes:
        name: The attribute it becomes.
        where: file:line of the declaration.
        expected: Its type.
    """

    name: str
    where: str
    expected: ExpectedType


class MindSpeedArguments:
    """The arguments of the MindSpeed in a code folder; `present` is False without one."""

    def __init__(self, sources: SourceIndex) -> None:
        self._sources = sources
        self._arguments: dict[str, MindSpeedArgument | None] = {}
        self._declarations_by_file: dict[str, tuple[list[MindSpeedArgument], list[tuple[str, str]]]] = {}
        self.present = (sources.code / _FOLDER / "__init__.py").is_file()

    def get(self, name: str) -> MindSpeedArgument | None:
        """Return the argument of this name; only files that contain it are parsed."""
        if name not in self._arguments:
            spelled = (name.encode(), name.replace("_", "-").encode())
            files = self._declaring_files.items()
            named = [file for file, content in files if any(one in content for one in spelled)]
            self._arguments[name] = self._parse_declarations(named).get(name)
        return self._arguments[name]

    @cached_property
    def declared(self) -> dict[str, MindSpeedArgument]:
        """All arguments of arguments.py and the features. Choices of repeated declarations are merged."""
        return self._parse_declarations(self._declaring_files)

    @cached_property
    def _declaring_files(self) -> dict[str, bytes]:
        """The files that declare MindSpeed's arguments, except programs such as mindspeed/run/run.py."""
        return {
            file: content
            for file, content in self._texts.items()
            if (b"add_argument(" in content or _CHOICE_ADDERS.encode() in content)
            and (b"register_args" in content or file == f"{_FOLDER}/arguments.py")
        }

    def _parse_declarations(self, files: Iterable[str]) -> dict[str, MindSpeedArgument]:
        result: dict[str, MindSpeedArgument] = {}
        added: dict[str, list[str]] = {}
        for file in files:
            arguments, choices = self._declarations_in(file)
            for argument in arguments:
                result[argument.name] = _unite(result.get(argument.name), argument)
            for name, choice in choices:
                added.setdefault(name, []).append(choice)
        for name, more in added.items():
            if name in result and result[name].expected.choices:
                expected = result[name].expected
                wider = replace(expected, choices=tuple(dict.fromkeys((*expected.choices, *more))))
                result[name] = replace(result[name], expected=wider)
        return result

    def _declarations_in(self, file: str) -> tuple[list[MindSpeedArgument], list[tuple[str, str]]]:
        """Return the arguments that a file declares, and the choices that it adds to other arguments."""
        if file not in self._declarations_by_file:
            tree = self._sources.tree(file)
            self._declarations_by_file[file] = _declarations(tree, file) if tree else ([], [])
        return self._declarations_by_file[file]

    def read_at(self, name: str) -> str | None:
        """Return file:line of a read of this name from MindSpeed's arguments or configuration, or None."""
        word = re.escape(name)
        holder = r"(?:\w*args|\w*config|get_args\(\)|get_full_args\(\))"
        pattern = re.compile(
            rf"\b{holder}\.{word}\b(?!\s*(?:=[^=]|\())|attr\(\s*(?:self\.)?{holder},\s*['\"]{word}['\"]".encode()
        )
        for file, content in self._texts.items():
            match = pattern.search(content) if name.encode() in content else None
            if match:
                return f"{file}:{content.count(bytes((10,)), 0, match.start()) + 1}"
        return None

    @property
    def _texts(self) -> Mapping[str, bytes]:
        return self._sources.texts(_FOLDER) if self.present else {}


def _declarations(tree: ast.Module, file: str) -> tuple[list[MindSpeedArgument], list[tuple[str, str]]]:
    arguments, choices = [], []
    for node in _calls_in_statements(tree.body):
        called, texts = last_name(node.func), [text for a in node.args if (text := text_of(a)) is not None]
        if called == "add_argument" and (name := _attribute(node, texts)):
            arguments.append(MindSpeedArgument(name, f"{file}:{node.lineno}", _expected_type(node)))
        elif called == _CHOICE_ADDERS and len(texts) == 2:
            choices.append((_underscored(texts[0]), texts[1]))
    return arguments, choices


def _calls_in_statements(body: list[ast.stmt]) -> Iterator[ast.Call]:
    """Yield the calls that are statements, at any depth."""
    for statement in body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            yield statement.value
        for part in ("body", "orelse", "finalbody", "handlers"):
            yield from _calls_in_statements(getattr(statement, part, []))


def _attribute(node: ast.Call, texts: list[str]) -> str | None:
    for item in node.keywords:
        if item.arg == "dest" and isinstance(item.value, ast.Constant):
            return str(item.value.value)
    long = [text for text in texts if text.startswith("--")] or texts
    return _underscored(long[0]) if long else None


def _underscored(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _expected_type(node: ast.Call) -> ExpectedType:
    given = {item.arg: item.value for item in node.keywords}
    action = given.get("action")
    if isinstance(action, ast.Constant) and action.value in ("store_true", "store_false"):
        return ExpectedType(frozenset({"bool"}))
    if "nargs" in given or action is not None:
        return ANY
    choices = given.get("choices")
    if isinstance(choices, (ast.List, ast.Tuple)):
        texts = tuple(text for item in choices.elts if (text := text_of(item)) is not None)
        if texts and len(texts) == len(choices.elts):
            return ExpectedType(frozenset({"text"}), texts)
    return named_type(given.get("type"))


def _unite(first: MindSpeedArgument | None, second: MindSpeedArgument) -> MindSpeedArgument:
    """Merge two declarations of an argument, with a type that accepts the values of both."""
    if first is None:
        return second
    if first.expected == second.expected:
        return first
    if first.expected.choices and second.expected.choices:
        choices = tuple(dict.fromkeys((*first.expected.choices, *second.expected.choices)))
        return replace(first, expected=ExpectedType(first.expected.types | second.expected.types, choices))
    return replace(first, expected=ANY)
