"""Names that packages of a code tree rebind in other packages on import, found in the source.

Two ways are known. MindSpeed names its targets to a manager, `register_patch("megatron.core.x.f", new)`
(mindspeed/patch_utils.py @ 7ff818c4:144): a name that ends with wrapper or decorator is laid around the old function,
any other takes its place, once the feature it belongs to is on. vllm-ascend and others assign: `vllm.x.f = new`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from npu_rl.common.bounded import syntax_tree
from npu_rl.stack.git.command import Git, ObjectReader

# Assignments to attributes of self and cls stand in nearly every file.
_WORTH_PARSING = re.compile(
    rb"\bregister_patch\(|\bsetattr\(|^[ \t]*(?!self\.|cls\.)[A-Za-z_]\w*(?:\.\w+)+[ \t]*=[^=]", re.MULTILINE
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LONGEST = 100  # letters of an expression


@dataclass(frozen=True)
class Rebinding:
    """One rebound name of another package.

    Attributes:
        target: The dotted name. `{}` stands for what is only known at run time.
        value: The expression that takes its place, as the code has it.
        how: "replaced"; "wrapped" if the value is called with the old one; "registered" if the target is named to a
            manager without a value.
        registered: Whether a manager does it, later and only where the feature is on.
        file, line: Where it is written, in the code tree.
    """

    target: str
    value: str
    how: str
    registered: bool
    file: str
    line: int


def rebindings_in_tree(repository: Git, tree: str) -> list[Rebinding]:
    """Return the rebindings of all Python files of a tree, by target. Raises GitError for missing objects."""
    found: list[Rebinding] = []
    with ObjectReader(repository) as reader:
        for entry in repository.lines("ls-tree", "-r", "-z", tree):
            head, _, name = entry.partition(b"\t")
            path = name.decode("utf-8", "surrogateescape")
            mode, _, oid = head.decode().split(" ")
            if path.endswith(".py") and mode.startswith("100"):
                found += rebindings_in_file(path, reader.read(oid)[1])
    return sorted(found, key=lambda one: (one.target, one.file, one.line))


def rebindings_in_file(path: str, content: bytes) -> list[Rebinding]:
    """Return the rebindings of names outside the file's own package; none if it can't be parsed as Python."""
    if not _WORTH_PARSING.search(content):
        return []
    tree = syntax_tree(content)
    if tree is None:
        return []
    try:
        found = list(_assignments(tree, path))
        if b"register_patch(" in content:
            found += _registrations(tree, path)
    except RecursionError:  # an expression that is nested deeper than it can be printed
        return []
    package = path.partition("/")[0]
    return [one for one in found if one.target.partition(".")[0] != package]


def _registrations(tree: ast.Module, path: str) -> Iterator[Rebinding]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != "register_patch":
            continue
        target = _text(node.args[0]) if node.args else None
        if target is None or "." not in target:
            continue
        given = node.args[1] if len(node.args) > 1 else _keyword(node, "new_func")
        value = "" if given is None else _shown(given)
        around = value.endswith(("wrapper", "decorator"))
        how = "wrapped" if around else "replaced" if value else "registered"
        yield Rebinding(target, value, how, True, path, node.lineno)


def _assignments(tree: ast.Module, path: str) -> Iterator[Rebinding]:
    """Yield a module's assignments to attributes of its imports, outside functions."""
    imported = dict(_imported_names(tree))
    for node in _run_at_import(tree.body):
        if isinstance(node, ast.Assign):
            targets = [_dotted(target, imported) for target in node.targets]
            value = _shown(node.value)
        elif _is_setattr(node):
            owner = _dotted(node.args[0], imported, bare=True)
            name = _text(node.args[1])
            targets = [f"{owner}.{name}" if owner and name else None]
            value = _shown(node.args[2])
        else:
            continue
        for target in filter(None, targets):
            yield Rebinding(target, value, "replaced", False, path, node.lineno)


def _run_at_import(body: Iterable[ast.stmt]) -> Iterator[Any]:
    """Yield the nodes that run when a module is imported: those outside of functions."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        if not isinstance(node, _FUNCTIONS):
            yield node
            waiting += ast.iter_child_nodes(node)


def _imported_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each name that a module's imports bind, with its target; relative imports aside."""
    for node in _run_at_import(tree.body):
        if isinstance(node, ast.Import):
            for item in node.names:
                yield (item.asname, item.name) if item.asname else (item.name.split(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((item.asname or item.name, f"{node.module}.{item.name}") for item in node.names)


def _dotted(node: ast.expr, imported: dict[str, str], *, bare: bool = False) -> str | None:
    """Return the full name of `a.b.c` if `a` is imported; for just `a`, only if `bare`."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in imported or not (names or bare):
        return None
    return ".".join([imported[node.id], *reversed(names)])


def _is_setattr(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "setattr" and len(node.args) == 3


def _keyword(node: ast.Call, name: str) -> ast.expr | None:
    return next((word.value for word in node.keywords if word.arg == name), None)


def _text(node: ast.expr) -> str | None:
    """Return a string's text, with {} for parts known only at run time; None for other expressions."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "{}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _shown(node: ast.expr) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
