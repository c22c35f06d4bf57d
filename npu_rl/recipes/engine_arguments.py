"""The keys of `engine_kwargs.vllm`: vLLM's engine arguments, and vllm-ascend's `additional_config`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from npu_rl.recipes.code_files import source_files
from npu_rl.recipes.kinds import of_field
from npu_rl.recipes.nearest import nearest
from npu_rl.recipes.python_classes import Field, Sources, parse
from npu_rl.recipes.verdict import Verdict, unknown

_ENGINE = "vllm.engine.arg_utils.EngineArgs"
_ROLLOUTS = "verl/workers/rollout/vllm_rollout"
_ADDITIONAL = "additional_config"
# Platform plugins add choices of their own to these.
_OPEN = frozenset({"quantization", "device"})


@dataclass(frozen=True)
class _Options:
    """The keys one mapping of additional_config is asked for. more: it is also read as a whole."""

    keys: Mapping[str, str]
    more: bool


class EngineArguments:
    """The engine's readers in a code folder."""

    def __init__(self, code: Path, sources: Sources) -> None:
        self._code = code
        self._sources = sources

    def look(self, section: str, names: tuple[str, ...]) -> Verdict:
        """Who reads `section.names…`."""
        if names[0] == _ADDITIONAL and len(names) > 1:
            return self._additional(names[1:])
        name = names[0]
        if name in self._passed:
            own = f"{section.removesuffix('.engine_kwargs.vllm')}.{self._passed[name][1] or name}"
            return unknown(f"the trainer passes {name} to vLLM itself ({self._passed[name][0]}): set {own}")
        if self._fields is None:
            return Verdict(True, unchecked="vLLM (there is no vllm in the code)")
        field = self._fields.get(name)
        if field is None:
            return unknown(f"vLLM's engine has no argument {name}", nearest(name, self._fields))
        if len(names) > 1:
            return Verdict(True, where=field.where)
        kinds = of_field(field, self._sources)
        return Verdict(True, kinds=replace(kinds, choices=()) if name in _OPEN else kinds, where=field.where)

    @cached_property
    def _fields(self) -> Mapping[str, Field] | None:
        return self._sources.fields(_ENGINE)

    @cached_property
    def _passed(self) -> dict[str, tuple[str, str | None]]:
        """What the trainer already passes beside `**engine_kwargs`: name -> (file:line, its own key's name).

        A second one is a TypeError (verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py@v0.5.0).
        """
        result: dict[str, tuple[str, str | None]] = {}
        for path in source_files((self._code / _ROLLOUTS).glob("*.py")):
            content = path.read_bytes()
            if b"**engine_kwargs" not in content:
                continue
            for node in _nodes(content):
                if isinstance(node, ast.Call) and any(
                    k.arg is None and isinstance(k.value, ast.Name) and k.value.id == "engine_kwargs"
                    for k in node.keywords
                ):
                    file = path.relative_to(self._code).as_posix()
                    for item in node.keywords:
                        if item.arg:
                            result.setdefault(item.arg, (f"{file}:{item.value.lineno}", _own_key(item.value)))
        return result

    def _additional(self, names: tuple[str, ...]) -> Verdict:
        if not self._options:
            return Verdict(True, unchecked="vllm-ascend (there is no vllm_ascend in the code)")
        holder, name = (_ADDITIONAL, names[0]) if len(names) == 1 else (names[-2], names[-1])
        options = self._options.get(holder)
        if options is None:
            top = self._options[_ADDITIONAL].keys
            if names[0] in top:
                return Verdict(True, where=top[names[0]])
            holder, name, options = _ADDITIONAL, names[0], self._options[_ADDITIONAL]
        if name in options.keys or (options.more and holder != _ADDITIONAL):
            return Verdict(True, where=options.keys.get(name))
        return unknown(f"vllm-ascend reads no {name} from {holder}", nearest(name, options.keys))

    @cached_property
    def _options(self) -> dict[str, _Options]:
        """Each mapping vllm-ascend reads options from, by the name it has there."""
        keys: dict[str, dict[str, str]] = {}
        more: set[str] = set()
        for path in source_files((self._code / "vllm_ascend").rglob("*.py")):
            content = path.read_bytes()
            if _ADDITIONAL.encode() not in content:
                continue
            file = path.relative_to(self._code).as_posix()
            for holder, name, line in _asked(content):
                if name is None:
                    more.add(holder)
                else:
                    keys.setdefault(holder, {}).setdefault(name, f"{file}:{line}")
        reached = {_ADDITIONAL, *keys.get(_ADDITIONAL, {})}
        result = {name: _Options(keys.get(name, {}), name in more) for name in reached if name in keys}
        return result if _ADDITIONAL in result else {}


def _asked(content: bytes) -> list[tuple[str, str | None, int]]:
    """`holder.get("name")`, `holder["name"]`; None for `holder.items()`."""
    result: list[tuple[str, str | None, int]] = []
    for node in _nodes(content):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            holder = _last(node.func.value)
            first = node.args[0] if node.args else None
            if holder and node.func.attr == "get" and isinstance(first, ast.Constant):
                result.append((holder, str(first.value), node.lineno))
            elif holder and node.func.attr == "items":
                result.append((holder, None, node.lineno))
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and _last(node.value):
            result.append((_last(node.value) or "", str(node.slice.value), node.lineno))
    return result


def _nodes(content: bytes) -> Iterator[ast.AST]:
    tree = parse(content)
    return ast.walk(tree) if tree else iter(())


def _last(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _own_key(node: ast.expr) -> str | None:
    """The key of `config.KEY` or `config.get("KEY")`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        return str(node.args[0].value)
    return node.id if isinstance(node, ast.Name) else None
