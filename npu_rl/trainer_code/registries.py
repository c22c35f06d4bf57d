"""The names of a registry: a mapping at the top of a module that a decorator of the module fills."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from npu_rl.trainer_code.source_index import Module, Sources, module_name


def registered_names(sources: Sources, module: Module, name: str) -> dict[str, None] | None:
    """Every name the tree registers; None if `name` is no such mapping, or one of its names can't be read."""
    statement = module.names.get(name)
    value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
    if not (isinstance(value, ast.Dict) and not value.keys):
        return None
    names: dict[str, None] = {}
    near = [part.encode() for part in module.dotted.split(".")[-2:]]  # whoever registers imports one of them
    for filler in _fillers(sources, module, name):
        for file, content in sources.texts(module.dotted.partition(".")[0]).items():
            imported = file == module.file or any(part in content for part in near)
            if not imported or filler.encode() + b"(" not in content:
                continue
            for user, call in _calls(sources, module, file, filler):
                text = _name(sources, user, call.args[0]) if len(call.args) == 1 else None
                if text is None:
                    return None
                names[text] = None
    return names or None


def _fillers(sources: Sources, module: Module, name: str) -> list[str]:
    """The functions of the module that set an item of the mapping."""
    tree = sources.tree(module.file)
    if f"{name}[".encode() not in sources.texts(module.dotted.partition(".")[0]).get(module.file, b""):
        return []  # walking every function of a large module takes a tenth of a whole check
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)] if tree else []
    return [one.name for one in functions if any(_sets(node, name) for node in ast.walk(one))]


def _sets(node: ast.AST, name: str) -> bool:
    """Whether it is the target of `name[...] = ...`."""
    if not (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)):
        return False
    return isinstance(node.value, ast.Name) and node.value.id == name


def _calls(sources: Sources, module: Module, file: str, name: str) -> Iterator[tuple[Module, ast.Call]]:
    """The calls of a function of `module` in a file, as a decorator or at the top."""
    tree, user = sources.tree(file), sources.module(module_name(file))
    for statement in tree.body if tree and user else ():
        decorators = getattr(statement, "decorator_list", [])
        top = [statement.value] if isinstance(statement, (ast.Expr, ast.Assign)) else []
        for node in (*decorators, *top):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Call):
                node = node.func
            if user is None or not isinstance(node, ast.Call):
                continue
            found = sources.expression(user, node.func)
            if found and found[0].file == module.file and getattr(found[1], "name", "") == name:
                yield user, node


def _name(sources: Sources, module: Module, node: ast.expr) -> str | None:
    """The text that `"name"` or `Enumeration.MEMBER` is."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    found = sources.expression(module, node.value) if isinstance(node, ast.Attribute) else None
    if not (found and isinstance(found[1], ast.ClassDef) and isinstance(node, ast.Attribute)):
        return None
    for item in found[1].body:
        if isinstance(item, ast.Assign) and isinstance(item.value, ast.Constant):
            names = [target.id for target in item.targets if isinstance(target, ast.Name)]
            if node.attr in names:
                return str(item.value.value)
    return None
