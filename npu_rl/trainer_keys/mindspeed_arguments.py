"""What MindSpeed reads from `override_transformer_config`.

Its `repatch` sets every key of that mapping on its arguments (mindspeed/megatron_adaptor.py@7ff818c4), so a key is
known if MindSpeed declares such an argument or reads an attribute of that name from its arguments or configuration.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from npu_rl.trainer_code.source_index import Sources
from npu_rl.trainer_keys.value_types import ANY, Kinds, of_named_type

_FOLDER = "mindspeed"
_CHOICE_ADDERS = "add_parser_argument_choices_value"


@dataclass(frozen=True)
class Argument:
    """A declared argument, by the attribute it becomes. where: file:line."""

    name: str
    where: str
    kinds: Kinds


class MindSpeedArguments:
    """The arguments of the MindSpeed in a code folder; `present` is False without one."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._found: dict[str, Argument | None] = {}
        self._of_files: dict[str, tuple[list[Argument], list[tuple[str, str]]]] = {}
        self.present = (sources.code / _FOLDER / "__init__.py").is_file()

    def get(self, name: str) -> Argument | None:
        """The argument of this name; only files that spell it are parsed."""
        if name not in self._found:
            spelled = (name.encode(), name.replace("_", "-").encode())
            files = self._declaring.items()
            named = [file for file, content in files if any(one in content for one in spelled)]
            self._found[name] = self._declared(named).get(name)
        return self._found[name]

    @cached_property
    def declared(self) -> dict[str, Argument]:
        """Every argument of arguments.py and the features; choices of several declarations together."""
        return self._declared(self._declaring)

    @cached_property
    def _declaring(self) -> dict[str, bytes]:
        """The files that declare arguments; others that do are programs of their own, such as mindspeed/run/run.py."""
        return {
            file: content
            for file, content in self._texts.items()
            if (b"add_argument(" in content or _CHOICE_ADDERS.encode() in content)
            and (b"register_args" in content or file == f"{_FOLDER}/arguments.py")
        }

    def _declared(self, files: Iterable[str]) -> dict[str, Argument]:
        result: dict[str, Argument] = {}
        added: dict[str, list[str]] = {}
        for file in files:
            arguments, choices = self._of_file(file)
            for argument in arguments:
                result[argument.name] = _together(result.get(argument.name), argument)
            for name, choice in choices:
                added.setdefault(name, []).append(choice)
        for name, more in added.items():
            if name in result and result[name].kinds.choices:
                kinds = result[name].kinds
                wider = replace(kinds, choices=tuple(dict.fromkeys((*kinds.choices, *more))))
                result[name] = replace(result[name], kinds=wider)
        return result

    def _of_file(self, file: str) -> tuple[list[Argument], list[tuple[str, str]]]:
        """The arguments a file declares, and the choices it adds to others."""
        if file not in self._of_files:
            tree = self._sources.tree(file)
            self._of_files[file] = _declarations(tree, file) if tree else ([], [])
        return self._of_files[file]

    def read_at(self, name: str) -> str | None:
        """file:line of a read of this name from MindSpeed's arguments or configuration."""
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


def _declarations(tree: ast.Module, file: str) -> tuple[list[Argument], list[tuple[str, str]]]:
    arguments, choices = [], []
    for node in _called(tree.body):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        texts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        if called == "add_argument" and (name := _attribute(node, texts)):
            arguments.append(Argument(name, f"{file}:{node.lineno}", _kinds(node)))
        elif called == _CHOICE_ADDERS and len(texts) == 2:
            choices.append((_underscored(texts[0]), texts[1]))
    return arguments, choices


def _called(body: list[ast.stmt]) -> Iterator[ast.Call]:
    """The calls that are statements of their own, at any depth."""
    for statement in body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            yield statement.value
        for part in ("body", "orelse", "finalbody", "handlers"):
            yield from _called(getattr(statement, part, []))


def _attribute(node: ast.Call, texts: list[str]) -> str | None:
    for item in node.keywords:
        if item.arg == "dest" and isinstance(item.value, ast.Constant):
            return str(item.value.value)
    long = [text for text in texts if text.startswith("--")] or texts
    return _underscored(long[0]) if long else None


def _underscored(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _kinds(node: ast.Call) -> Kinds:
    given = {item.arg: item.value for item in node.keywords}
    action = given.get("action")
    if isinstance(action, ast.Constant) and action.value in ("store_true", "store_false"):
        return Kinds(frozenset({"bool"}))
    if "nargs" in given or action is not None:
        return ANY
    choices = given.get("choices")
    if isinstance(choices, (ast.List, ast.Tuple)):
        values = [item.value for item in choices.elts if isinstance(item, ast.Constant)]
        texts = tuple(value for value in values if isinstance(value, str))
        if texts and len(texts) == len(choices.elts):
            return Kinds(frozenset({"text"}), texts)
    return of_named_type(given.get("type"))


def _together(first: Argument | None, second: Argument) -> Argument:
    """One of two declarations; what both take, if they differ."""
    if first is None:
        return second
    if first.kinds == second.kinds:
        return first
    if first.kinds.choices and second.kinds.choices:
        choices = tuple(dict.fromkeys((*first.kinds.choices, *second.kinds.choices)))
        return replace(first, kinds=Kinds(first.kinds.kinds | second.kinds.kinds, choices))
    return replace(first, kinds=ANY)
