"""The names in a registry: a mapping at the top level of a module, filled by a decorator of that module."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from npu_rl.recipes.trainer_code.source_index import Module, SourceIndex, module_name
from npu_rl.recipes.trainer_code.syntax_nodes import assigned_values, text_of


def registered_names(sources: SourceIndex, module: Module, name: str) -> dict[str, None] | None:
    """Return the names that the tree registers; None if `name` is not a registry, or a name can't be read."""
    statement = module.names.get(name)
    value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
    if not (isinstance(value, ast.Dict) and not value.keys):
        return None
    names: dict[str, None] = {}
    near = [part.encode() for part in module.dotted.split(".")[-2:]]  # whoever registers imports one of them
    for function in _registering_functions(sources, module, name):
        for file, content in sources.texts(module.dotted.partition(".")[0]).items():
            imported = file == module.file or any(part in content for part in near)
            if not imported or function.encode() + b"(" not in content:
                continue
            for user, call in _registering_calls(sources, module, file, function):
                text = _registered_name(sources, user, call.args[0]) if len(call.args) == 1 else None
                if text is None:
                    return None
                names[text] = None
    return names or None


def _registering_functions(sources: SourceIndex, module: Module, name: str) -> list[str]:
    """Return the functions of the module that set an item of the mapping."""
    tree = sources.tree(module.file)
    if f"{name}[".encode() not in sources.texts(module.dotted.partition(".")[0]).get(module.file, b""):
        return []  # walking every function of a large module takes a tenth of a whole check
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)] if tree else []
    return [one.name for one in functions if any(_sets_item(node, name) for node in ast.walk(one))]


def _sets_item(node: ast.AST, name: str) -> bool:
    """Return whether a node is the target of `name[...] = ...`."""
    if not (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)):
        return False
    return isinstance(node.value, ast.Name) and node.value.id == name


def _registering_calls(
    sources: SourceIndex, module: Module, file: str, name: str
) -> Iterator[tuple[Module, ast.Call]]:
    """Yield the calls of a registering function in a file, as a decorator or at the top level."""
    tree, user = sources.tree(file), sources.module(module_name(file))
    for statement in tree.body if tree and user else ():
        decorators = getattr(statement, "decorator_list", [])
        top = [statement.value] if isinstance(statement, (ast.Expr, ast.Assign)) else []
        for node in (*decorators, *top):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Call):
                node = node.func
            if user is None or not isinstance(node, ast.Call):
                continue
            found = sources.find_expression(user, node.func)
            if found and found[0].file == module.file and getattr(found[1], "name", "") == name:
                yield user, node


def _registered_name(sources: SourceIndex, module: Module, node: ast.expr) -> str | None:
    """Return the text of `"name"` or `Enumeration.MEMBER`, or None."""
    text = text_of(node)
    if text is not None or not isinstance(node, ast.Attribute):
        return text
    found = sources.find_class_expression(module, node.value)
    member = assigned_values(found[1].body).get(node.attr) if found else None
    return str(member.value) if isinstance(member, ast.Constant) else None
