"""Search for the functions that read a configuration key, first in the text, then in syntax trees.

Only functions around a matching line are examined: walking every tree would take seconds.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

from npu_rl.recipes.trainer_code.source_files import line_numbers
from npu_rl.recipes.trainer_code.source_index import SourceIndex, module_name
from npu_rl.recipes.trainer_keys.value_flow import AnyFunction, ValueUse
from npu_rl.recipes.trainer_keys.value_guards import expression_text

_RECIPES = "recipe"  # verl's folder of programs, which have nothing to do with each other
# vllm_rollout, sglang_rollout, trtllm_rollout
_ENGINE_FOLDER = re.compile(r"verl/workers/rollout/(\w+)_rollout/")
# fsdp, megatron, automodel, torchtitan, veomni, ...
_BACKEND_FOLDER = re.compile(r"verl/workers/engine/(\w+)/")
# Programs of their own, which no other imports: what they refuse says nothing about main_ppo (verl@v0.8.0, 8851219).
_PROGRAM_FOLDER = re.compile(r"verl/experimental/(?:fully_async_policy|one_step_off_policy)/")
_TRAINER = ("verl", "verl_patches")
_CONFIGS = ("config", "cfg", "args")
_FOREIGN = frozenset({"hf_config", "vllm_config", "generation_config"})  # of other libraries


class ReadingFunctions:
    """The functions of one code folder that read keys."""

    def __init__(
        self, sources: SourceIndex, program: str, backends: tuple[str, str] = ("", ""), engine: str = ""
    ) -> None:
        """Prepare the search.

        Args:
            program: The trainer's file.
            backends: Words in the paths of the training backend that runs, and of the other that doesn't.
            engine: The engine of the rollout, as rollout.name has it; empty if any may run.
        """
        self._sources = sources
        self._program = program
        package, folder = program.partition("/")[0], program.rpartition("/")[0]
        own = folder if package == _RECIPES else package
        self._folders = tuple(dict.fromkeys((own, *_TRAINER)))
        self._used, self._unused = backends
        self._engine = engine

    @cached_property
    def files(self) -> Mapping[str, bytes]:
        """The trainer's files, except other programs and files of other backends and engines."""
        return {
            file: text
            for folder in self._folders
            for file, text in self._sources.texts(folder).items()
            if (b"__main__" not in text or file == self._program)
            and not self._is_of_another_program(file)
            and not self._is_of_another_backend(file)
            and not self._is_of_another_engine(file)
        }

    def _is_of_another_program(self, file: str) -> bool:
        """Return whether a file belongs to a program that this recipe doesn't run."""
        found = _PROGRAM_FOLDER.match(file)
        return found is not None and not self._program.startswith(found[0])

    def _is_of_another_backend(self, file: str) -> bool:
        """Return whether a file belongs to a training backend that this recipe doesn't use."""
        found = _BACKEND_FOLDER.match(file) if self._used else None
        return bool(self._unused and self._unused in file) or (found is not None and found[1] != self._used)

    def _is_of_another_engine(self, file: str) -> bool:
        """Return whether a file belongs to an engine that this recipe doesn't use."""
        found = _ENGINE_FOLDER.match(file) if self._engine else None
        return found is not None and not found[1].startswith(self._engine)

    def in_trainer(self, section: str, name: str, unique: bool) -> Iterator[ValueUse]:
        """Yield the functions of the trainer's package that read `section.name`.

        Args:
            unique: Whether no other section has a key of this name, so that `config.name` is this one, too.
        """
        last = section.rpartition(".")[2]
        one_word = "_" not in name
        before = rf"\b{re.escape(last)}(?:_\w+)?\W{{1,8}}(?:get\W{{1,3}})?" if one_word else r"[.'\"]"

        def is_read(parts: list[str], file: str) -> bool:
            return _is_section(parts, last) or (
                not one_word and _is_configuration(parts) and (unique or last in re.split(r"[/_.]", file))
            )

        yield from self._reads(self.files, name, before, is_read)

    def in_library(self, folder: str, name: str) -> Iterator[ValueUse]:
        """Yield the functions of a library that read `name` from its configuration or arguments."""
        texts = self._sources.texts(folder)
        yield from self._reads(texts, name, r"[.'\"]", lambda parts, _file: _is_configuration(parts))

    def _reads(
        self, texts: Mapping[str, bytes], name: str, before: str, is_read: Callable[[list[str], str], bool]
    ) -> Iterator[ValueUse]:
        word = re.compile(f"{before}{re.escape(name)}\\b".encode())
        for file, text in texts.items():
            matches = word.finditer(text) if name.encode() in text else ()
            lines = set(line_numbers(text, (match.end() for match in matches)))
            tree = self._sources.tree(file) if lines else None
            module = self._sources.module(module_name(file)) if tree else None
            if tree is None or module is None:
                continue
            for node, owner in _functions_at(tree, lines):
                found = {
                    expression
                    for item in ast.walk(node)
                    if _last_name(item) == name and (expression := expression_text(item))
                }
                reads = {text for text in found if is_read(text.split(".")[:-1], file)}
                if reads:
                    yield ValueUse(module, node, owner, dict.fromkeys(reads, math.inf))


def _is_section(parts: list[str], last: str) -> bool:
    """Return whether the names before the key denote the section: `config.actor`, `actor_config` or a parameter."""
    if not parts:
        return False
    *before, base = parts
    if base == last and (any(_is_configuration([part]) for part in before) or (not before and "_" in last)):
        return True
    return any(base == f"{last}{ending}" for ending in ("_config", "_cfg", "_conf"))


def _is_configuration(parts: list[str]) -> bool:
    """Return whether the names before the key denote a configuration of any section."""
    base = parts[-1] if parts else ""
    return base in _CONFIGS or (base.endswith(("_args", "_config")) and base not in _FOREIGN)


def _last_name(node: ast.AST) -> str | None:
    """Return the last name in an expression that reads a value."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return expression_text(node).rpartition(".")[2] if isinstance(node, (ast.Call, ast.Subscript)) else None


def _functions_at(tree: ast.Module, lines: set[int]) -> Iterator[tuple[AnyFunction, ast.ClassDef | None]]:
    """Yield a module's functions and methods that contain one of the lines."""
    for node in tree.body:
        for item in node.body if isinstance(node, ast.ClassDef) else [node]:
            if not isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if any(item.lineno <= line <= (item.end_lineno or 0) for line in lines):
                yield item, node if isinstance(node, ast.ClassDef) else None
