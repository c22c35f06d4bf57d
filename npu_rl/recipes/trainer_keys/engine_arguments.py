"""The keys of `engine_kwargs.vllm`: vLLM's engine arguments, and vllm-ascend's `additional_config`."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from npu_rl.common.bounded import syntax_tree
from npu_rl.common.yaml_documents.suggest import nearest
from npu_rl.recipes.trainer_code.source_files import source_texts
from npu_rl.recipes.trainer_code.source_index import SourceField, SourceIndex
from npu_rl.recipes.trainer_code.syntax_nodes import last_name
from npu_rl.recipes.trainer_code.value_types import ExpectedType, field_type
from npu_rl.recipes.trainer_keys.engine_call import ADAPTATION, EngineCall, find_engine_call
from npu_rl.recipes.trainer_keys.engine_config import (
    NestedField,
    find_nested,
    find_refused_member,
    resolve_nested,
)
from npu_rl.recipes.trainer_keys.resolution import KeyResolution, RefusedValue, unknown
from npu_rl.recipes.trainer_keys.value_flow import enumeration_values

_ENGINE = "vllm.engine.arg_utils.EngineArgs"
_LOAD_FORMAT = "load_format"
_FORMATS = "vllm.config.LoadFormat"
_LOADERS = "vllm.model_executor.model_loader._LOAD_FORMAT_TO_MODEL_LOADER"
_REGISTERED = re.compile(rb"^@register_model_loader\([\"'](\w+)[\"']\)", re.MULTILINE)
_ADDITIONAL = "additional_config"
# Platform plugins add choices of their own to these.
_EXTENSIBLE = frozenset({"quantization", "device"})


@dataclass(frozen=True)
class _Options:
    """The keys that vllm-ascend reads from one mapping of additional_config.

    Attributes:
        keys: file:line of the code that reads each.
        read_whole: Whether the mapping is also read as a whole.
    """

    keys: Mapping[str, str]
    read_whole: bool


class EngineArguments:
    """The arguments of vLLM's engine in one code folder."""

    def __init__(self, code: Path, sources: SourceIndex, switched_off: Collection[str] = ()) -> None:
        self._code = code
        self._sources = sources
        self._adapted = ADAPTATION not in switched_off
        self._calls: dict[object, EngineCall] = {}

    def resolve(self, section: str, names: tuple[str, ...], mode: object) -> KeyResolution:
        """Resolve `section.name...`.

        Args:
            mode: The rollout's mode, whose call of the engine fixes some arguments.
        """
        if names[0] == _ADDITIONAL and len(names) > 1:
            return self._resolve_additional(f"{section}.{_ADDITIONAL}", names[1:])
        name = names[0]
        fixed = self._call(mode).fixed.get(name)
        if fixed is not None:
            own = fixed.own and f"{section.removesuffix('.engine_kwargs.vllm')}.{fixed.own}"
            return unknown(
                f"the trainer passes {name} to vLLM itself ({fixed.where}), so a recipe can't", own
            )
        if self._fields is None:
            return KeyResolution(True, unchecked="vLLM (the code has no vllm)")
        field = self._fields.get(name)
        if field is None:
            near = nearest(name, self._fields)
            return unknown(f"vLLM's engine has no argument {name}", near and f"{section}.{near}")
        if len(names) > 1:
            found = find_nested(self._sources, field, f"{section}.{name}", names[1:])
            if isinstance(found, NestedField):
                return resolve_nested(self._sources, found)
            return found or KeyResolution(True, where=field.where)
        return KeyResolution(True, expected=self._expected_type(field), where=field.where)

    def find_refused(self, names: tuple[str, ...], value: object) -> RefusedValue | None:
        """Return why vLLM refuses a load format or a value in an argument's configuration class, or None."""
        if names == (_LOAD_FORMAT,) and isinstance(value, str) and (formats := self._load_formats):
            known = formats.expected.choices
            return None if value.lower() in known else RefusedValue(value, known, formats.where or "", True)
        field = (self._fields or {}).get(names[0])
        found = find_nested(self._sources, field, names[0], names[1:]) if field else None
        return find_refused_member(self._sources, found, value) if isinstance(found, NestedField) else None

    def resolve_rollout_key(self, name: str, mode: object, value: str) -> KeyResolution | None:
        """Resolve `rollout.name` if the trainer passes its value unchanged to vLLM; else return None."""
        for argument, passed in self._call(mode).passed.items():
            field = (self._fields or {}).get(argument)
            if passed.own != name or field is None:
                continue
            if argument == _LOAD_FORMAT and (passed.unchanged or not value.startswith("dummy")):
                # else verl passes dummy for it; vLLM lowers letters (vllm/config.py:1720@v0.9.1)
                formats = self._load_formats
                return None if formats and value.lower() in formats.expected.choices else formats
            if passed.unchanged:
                return KeyResolution(True, expected=self._expected_type(field), where=field.where)
        return None

    @cached_property
    def _load_formats(self) -> KeyResolution | None:
        """The names of vLLM's load formats, from its enumeration or registry; None if the tree has neither."""
        for place in (_FORMATS, _LOADERS):
            found = self._sources.find(place)
            names = enumeration_values(found[1]) if found else None
            if found and isinstance(found[1], ast.AnnAssign) and isinstance(found[1].value, ast.Dict):
                keys = [key.value for key in found[1].value.keys if isinstance(key, ast.Constant)]
                names = [*map(str, keys), *self._registered_formats()]
            if found and names:
                expected = ExpectedType(frozenset({"text"}), tuple(names))
                return KeyResolution(True, expected=expected, where=f"{found[0].file}:{found[1].lineno}")
        return None

    def _registered_formats(self) -> Iterator[str]:
        """Yield the load formats that vLLM's own loaders and vllm-ascend's register."""
        for folder in ("vllm/model_executor/model_loader", "vllm_ascend"):
            for text in self._sources.texts(folder).values():
                yield from (name.decode() for name in _REGISTERED.findall(text))

    def _expected_type(self, field: SourceField) -> ExpectedType:
        expected = field_type(field, self._sources)
        return replace(expected, choices=()) if field.name in _EXTENSIBLE else expected

    @cached_property
    def _fields(self) -> Mapping[str, SourceField] | None:
        return self._sources.fields(_ENGINE)

    def _call(self, mode: object) -> EngineCall:
        if mode not in self._calls:
            self._calls[mode] = find_engine_call(self._sources, mode, self._adapted)
        return self._calls[mode]

    def _resolve_additional(self, section: str, names: tuple[str, ...]) -> KeyResolution:
        if not self._options:
            return KeyResolution(True, unchecked="vllm-ascend (the code has no vllm_ascend)")
        holder, name = (_ADDITIONAL, names[0]) if len(names) == 1 else (names[-2], names[-1])
        options = self._options.get(holder)
        if options is None:
            top = self._options[_ADDITIONAL].keys
            if names[0] in top:
                return KeyResolution(True, where=top[names[0]])
            holder, name, options = _ADDITIONAL, names[0], self._options[_ADDITIONAL]
        if name in options.keys or (options.read_whole and holder != _ADDITIONAL):
            return KeyResolution(True, where=options.keys.get(name))
        above = names[:-1] if holder != _ADDITIONAL else ()
        near = nearest(name, options.keys)
        right = near and ".".join((section, *above, near))
        return unknown(f"vllm-ascend reads no {name} from {holder}", right)

    @cached_property
    def _options(self) -> dict[str, _Options]:
        """The mappings that vllm-ascend reads options from, by name."""
        keys: dict[str, dict[str, str]] = {}
        read_whole: set[str] = set()
        for path, content in source_texts((self._code / "vllm_ascend").rglob("*.py")).items():
            if _ADDITIONAL.encode() not in content:
                continue
            file = path.relative_to(self._code).as_posix()
            for holder, name, line in _option_reads(content):
                if name is None:
                    read_whole.add(holder)
                else:
                    keys.setdefault(holder, {}).setdefault(name, f"{file}:{line}")
        reached = {_ADDITIONAL, *keys.get(_ADDITIONAL, {})}
        result = {name: _Options(keys.get(name, {}), name in read_whole) for name in reached if name in keys}
        return result if _ADDITIONAL in result else {}


def _option_reads(content: bytes) -> list[tuple[str, str | None, int]]:
    """Return mapping, key and line of each `mapping.get("key")`, `mapping["key"]` and `mapping.items()` (key None)."""
    result: list[tuple[str, str | None, int]] = []
    tree = syntax_tree(content)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            holder = last_name(node.func.value)
            first = node.args[0] if node.args else None
            if node.func.attr == "get" and isinstance(first, ast.Constant):
                result.append((holder, str(first.value), node.lineno))
            elif node.func.attr == "items":
                result.append((holder, None, node.lineno))
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            result.append((last_name(node.value), str(node.slice.value), node.lineno))
    return [one for one in result if one[0]]
