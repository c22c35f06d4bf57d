"""Usages of keys in the trainer's code that are in no configuration file, such as `data.seed`.

A usage is `X.get("name")`, `X["name"]`, `X.name`, `getattr(X, "name")`, `"name" in X` or `OmegaConf.select(x,
"section.name")`, where the expression X can be the section: `config.data`, `data_config`, or plain `config` if
nothing shows that it is another section.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from npu_rl.recipes.trainer_code.source_index import SourceIndex
from npu_rl.recipes.trainer_code.syntax_nodes import last_name, text_of

_CONFIGS = ("config", "cfg")
_SECTION_CONFIG = re.compile(r"(.+)_(?:config|cfg|conf)")
_BUILDER = "omega_conf_to_dataclass"
_FOREIGN = frozenset({"hf", "vllm", "generation"})  # hf_config and the like are of other libraries
_SHARED_FOLDERS = frozenset({"trainer", "megatron", "model"})  # folders of everything, not of one section
_METHODS = frozenset({"get", "pop", "items", "keys", "values", "copy", "update"})


@dataclass(frozen=True)
class KeyRead:
    """One usage of a key.

    Attributes:
        holder: The names in the expression before the key, such as ("self", "config", "actor").
        name: The key's last name.
        certain: Whether the expression names the section, rather than some configuration.
    """

    holder: tuple[str, ...]
    name: str
    file: str
    line: int
    certain: bool = True

    @property
    def where(self) -> str:
        """The place as file:line."""
        return f"{self.file}:{self.line}"


class CodeUsages:
    """The usages in a program's package and the packages it imports, without other programs.

    DAPO's trainer is in `recipe`, its workers are in `verl`. Only files that contain the name are parsed.
    """

    def __init__(self, sources: SourceIndex, module: str) -> None:
        self._sources = sources
        self._program = f"{module.replace('.', '/')}.py"
        self._packages = self._imported_packages(module.partition(".")[0])
        self._parsed: dict[str, tuple[list[KeyRead], dict[str, set[str]]]] = {}

    def find(
        self, section: str, name: str, sections: Collection[str], holders: Collection[str]
    ) -> KeyRead | None:
        """Return a usage of `section.name`, or None.

        Args:
            sections: All sections of the configuration.
            holders: The sections that have a key of this name.
        """
        last = section.rpartition(".")[2]
        others = {other.rpartition(".")[2] for other in sections} - {last}
        possible: KeyRead | None = None
        for file in self._files_with(name):
            reads, aliases = self._reads(file)
            for read in reads:
                if read.name != name:
                    continue
                if _is_section_read(read, last, aliases):
                    return read
                if possible is None and _may_be_section_read(read, last, others, aliases, bool(holders)):
                    possible = replace(read, certain=False)
        return possible

    def builder_of(self, section: str) -> str | None:
        """Return file:line where the trainer builds the section's dataclass, which refuses unknown fields, or None."""
        last = section.rpartition(".")[2]
        for file in self._files_with(_BUILDER):
            tree = self._sources.tree(file)
            for node in ast.walk(tree) if tree else ():
                if isinstance(node, ast.Call) and node.args and last_name(node.func) == _BUILDER:
                    chain = _name_chain(node.args[0])
                    if len(chain) > 1 and chain[-1] == last and any("config" in part for part in chain[:-1]):
                        return f"{file}:{node.lineno}"
        return None

    def _files_with(self, name: str) -> Iterator[str]:
        """Yield the files that contain the name, starting with the program itself."""
        word = re.compile(rb"\b" + re.escape(name.encode()) + rb"\b")
        files = [item for package in self._packages for item in self._sources.texts(package).items()]
        for file, text in sorted(files, key=lambda item: item[0] != self._program):
            other = file != self._program and b"__main__" in text
            if name.encode() in text and not other and word.search(text):
                yield file

    def _imported_packages(self, own: str) -> tuple[str, ...]:
        """Return the program's package, and the others of the tree that the program imports by name."""
        tree = self._sources.tree(self._program)
        imported: dict[str, None] = {own: None}
        for node in ast.walk(tree) if tree else ():
            names = [item.name for item in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            imported |= dict.fromkeys(name.partition(".")[0] for name in names)
        return tuple(name for name in imported if name == own or (self._sources.code / name).is_dir())

    def _reads(self, file: str) -> tuple[list[KeyRead], dict[str, set[str]]]:
        if file not in self._parsed:
            tree = self._sources.tree(file)
            self._parsed[file] = (list(_all_reads(tree, file)), _aliases(tree)) if tree else ([], {})
        return self._parsed[file]


def _is_section_read(read: KeyRead, last: str, aliases: dict[str, set[str]]) -> bool:
    """Return whether the expression before the key names this section."""
    *before, base = read.holder
    if base == last and any(part in _CONFIGS or part.endswith("config") for part in before):
        return True
    prefixed = _SECTION_CONFIG.fullmatch(base)
    return bool(prefixed and prefixed[1] == last) or last in aliases.get(base, ())


def _may_be_section_read(
    read: KeyRead, last: str, others: Collection[str], aliases: dict[str, set[str]], elsewhere: bool
) -> bool:
    """Return whether the expression before the key is a configuration, and not known to be another section.

    A file whose path names a section (`workers/rollout/`) reads that one. A name that other sections have, too,
    counts only there.
    """
    base, words = read.holder[-1], set(re.split(r"[/_.]", read.file))
    prefixed = _SECTION_CONFIG.fullmatch(base)
    if aliases.get(base, set()) & set(others) or (prefixed and prefixed[1] in others):
        return False
    if base not in _CONFIGS and (not prefixed or prefixed[1] in _FOREIGN):
        return False
    if last in words:
        return True
    return not elsewhere and not words & (set(others) - _SHARED_FOLDERS)


def _all_reads(tree: ast.Module, file: str) -> Iterator[KeyRead]:
    for node in ast.walk(tree):
        for holder, name in _reads_in_node(node):
            chain = _name_chain(holder)
            if chain:
                yield KeyRead(chain, name, file, getattr(node, "lineno", 1))


def _reads_in_node(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    if isinstance(node, ast.Call):
        first, second, *_ = *map(text_of, node.args), None, None
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop") and first:
            yield node.func.value, first
        elif isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr") and second:
            yield node.args[0], second
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "select" and second:
            *sections, name = second.split(".")
            holder = node.args[0]
            for section in sections:
                holder = ast.Attribute(holder, section, ast.Load())
            yield holder, name
    elif isinstance(node, ast.Subscript) and (key := text_of(node.slice)):
        yield node.value, key
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr not in _METHODS:
        yield node.value, node.attr
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        yield from ((node.comparators[0], key) for key in [text_of(node.left)] if key)


def _name_chain(node: ast.expr) -> tuple[str, ...]:
    """Return the names of `self.config.actor`, `config["actor"]` or `config.get("actor", {})`; empty for others."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        before = _name_chain(node.value)
        return (*before, node.attr) if before else ()
    if isinstance(node, ast.BoolOp):
        return _name_chain(node.values[0])
    for holder, name in _reads_in_node(node) if isinstance(node, (ast.Subscript, ast.Call)) else ():
        before = _name_chain(holder)
        return (*before, name) if before else ()
    return ()


def _aliases(tree: ast.Module) -> dict[str, set[str]]:
    """Return the sections behind names: x -> {"data"} for `x = config.data` or `self.x = config["data"]`."""
    result: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = _name_chain(node.targets[0]), _name_chain(node.value)
            if target and len(value) > 1 and any(p in _CONFIGS or p.endswith("config") for p in value[:-1]):
                result.setdefault(target[-1], set()).add(value[-1])
    return result
