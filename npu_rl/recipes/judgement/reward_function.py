"""Analysis of a reward function's file without running it: its definitions, and the calls that it accepts."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.bounded import syntax_tree
from npu_rl.recipes.trainer_code.source_files import read_source, source_texts
from npu_rl.recipes.trainer_code.source_index import Module, Parser, SourceIndex
from npu_rl.recipes.trainer_code.syntax_nodes import text_of

_MANAGERS = "verl/workers/reward_manager"
# From verl 0.8 on those of the reward loop score every response, and nothing makes one of the others.
_LOOP, _LOOPS_MANAGERS = "verl/experimental/reward_loop", "verl/experimental/reward_loop/reward_manager"
_REGISTERED = re.compile(rb"^@register(?:_manager)?\(\s*['\"](\w+)['\"]", re.M)


@dataclass(frozen=True)
class ModuleDefinitions:
    """The top-level definitions of a Python file.

    Attributes:
        names: All names that are bound.
        functions: Undecorated functions whose name is bound only once.
        callables: Names of all functions and classes.
        may_define_more: Whether other names may exist: a star import, `__getattr__`, `globals()`.
    """

    names: frozenset[str]
    functions: dict[str, ast.FunctionDef]
    callables: tuple[str, ...]
    may_define_more: bool


@dataclass(frozen=True)
class ManagerCall:
    """A call of the reward function by a reward manager.

    Attributes:
        manager: Registered name of the manager.
        positional: Number of positional arguments.
        keywords: Names of the keyword arguments.
        passes_unnamed: Whether it also passes `*args` or `**kwargs`.
    """

    manager: str
    where: str
    positional: int
    keywords: frozenset[str]
    passes_unnamed: bool


def definitions_in(path: Path) -> ModuleDefinitions | None:
    """Return the definitions of a Python file, or None if it can't be read as Python."""
    content = read_source(path)
    tree = None if content is None else syntax_tree(content)
    if tree is None:
        return None
    bound: list[str] = []
    functions: dict[str, ast.FunctionDef] = {}
    callables: list[str] = []
    may_define_more = False
    for statement in _module_statements(tree.body):
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.append(statement.name)
            callables.append(statement.name)
            if isinstance(statement, ast.FunctionDef) and not statement.decorator_list:
                functions[statement.name] = statement
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            may_define_more |= any(item.name == "*" for item in statement.names)
            bound += [(item.asname or item.name).partition(".")[0] for item in statement.names]
        else:
            bound += [
                node.id
                for node in _own_nodes(statement)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            ]
    called = {getattr(node.func, "id", "") for node in ast.walk(tree) if isinstance(node, ast.Call)}
    may_define_more |= "__getattr__" in bound or bool(called & {"globals", "exec", "setattr", "vars"})
    times = Counter(bound)
    once = {name: node for name, node in functions.items() if times[name] == 1}
    return ModuleDefinitions(frozenset(bound), once, tuple(callables), may_define_more)


def imported_function(path: Path, code: Path, name: str) -> tuple[Module, ast.FunctionDef] | None:
    """Return the function behind `NAME = MODULE.OTHER` if MODULE comes from `import_module`; else None.

    A module name that is computed at run time is resolved by its constant end: f"{PACKAGE}.deepscaler" is the
    `deepscaler` of the packages around the file, if exactly one of them has it.

    Args:
        path: The file that assigns the name.
        code: The code folder that the file lies in.
        name: The assigned name.
    """
    content = read_source(path) if path.is_relative_to(code) else None
    tree = None if content is None else syntax_tree(content)
    given = _assigned_once(tree) if tree else {}
    target = given.get(name)
    if not isinstance(target, ast.Attribute) or not isinstance(target.value, ast.Name):
        return None
    imported = given.get(target.value.id)
    if not isinstance(imported, ast.Call) or not imported.args:
        return None
    if ast.unparse(imported.func) not in ("importlib.import_module", "import_module"):
        return None
    sources, own = SourceIndex(code), path.relative_to(code)
    found = [sources.find(f"{module}.{target.attr}") for module in _modules(imported.args[0], own)]
    functions = [
        (module, node)
        for module, node in filter(None, found)
        if isinstance(node, ast.FunctionDef) and not node.decorator_list and module.file != own.as_posix()
    ]
    return functions[0] if len(functions) == 1 else None


def _assigned_once(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the values of the names that a module assigns once."""
    given: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    given.setdefault(target.id, []).append(node.value)
    return {name: values[0] for name, values in given.items() if len(values) == 1}


def _modules(name: ast.expr, own: Path) -> list[str]:
    """Return the modules that an argument of import_module may name."""
    plain = text_of(name)
    if plain is not None:
        return [plain]
    if not isinstance(name, ast.JoinedStr) or len(name.values) != 2:
        return []
    first, text = name.values[0], text_of(name.values[1])
    if not isinstance(first, ast.FormattedValue) or text is None or not text.startswith("."):
        return []
    packages = own.parts[:-1]
    return [".".join(packages[:length]) + text for length in range(1, len(packages) + 1)]


def has_reward_loop(code: Path) -> bool:
    """Return whether a tree has a reward loop with managers of its own, which also handles the older keys."""
    return b"def migrate_legacy_reward_impl(" in (read_source(code / _LOOP / "reward_loop.py") or b"")


def loop_managers(code: Path) -> dict[str, str]:
    """Return the reward loop's managers by their registered name, each with its file."""
    texts = source_texts((code / _LOOPS_MANAGERS).glob("*.py"))
    return {
        match.decode(): path.relative_to(code).as_posix()
        for path, text in texts.items()
        for match in _REGISTERED.findall(text)
    }


def manager_calls(code: Path, manager: str | None = None) -> list[ManagerCall]:
    """Return the calls of `compute_score` in the reward managers of a tree, or in one manager if it is named."""
    found = []
    folder = code / (_LOOPS_MANAGERS if has_reward_loop(code) else _MANAGERS)
    parser = Parser(code)
    for path, text in source_texts(folder.glob("*.py")).items():
        names = [match.decode() for match in _REGISTERED.findall(text)] or [path.stem]
        wanted = b"compute_score" in text and (manager is None or manager in names)
        tree = parser.parse(text) if wanted else None
        where = path.relative_to(code).as_posix()
        for node in ast.walk(tree) if tree else ():
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "compute_score":
                keywords = {word.arg for word in node.keywords}
                unnamed = None in keywords or any(isinstance(one, ast.Starred) for one in node.args)
                words = frozenset(filter(None, keywords))
                call = (f"{where}:{node.lineno}", len(node.args), words, unnamed)
                found += [ManagerCall(name, *call) for name in names]
    return found


def refused_arguments(function: ast.FunctionDef, call: ManagerCall) -> tuple[list[str], list[str]]:
    """Return the passed arguments that the function doesn't accept, and its required ones that the call lacks."""
    arguments = function.args
    plain = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    only = [argument.arg for argument in arguments.kwonlyargs]
    defaults = zip(only, arguments.kw_defaults, strict=True)
    needed = plain[: len(plain) - len(arguments.defaults)]
    needed += [name for name, default in defaults if default is None]
    by_name = {*plain[len(arguments.posonlyargs) :], *only}
    given = {*call.keywords, *plain[: call.positional]}
    unknown = [] if arguments.kwarg else sorted(call.keywords - by_name)
    missing = [] if call.passes_unnamed else [name for name in needed if name not in given]
    return unknown, missing


def _module_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that bind names of the module, including those in `if`, `try`, `with` and loops."""
    waiting = list(reversed(body))
    while waiting:
        statement = waiting.pop()
        yield statement
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for inner in ("finalbody", "orelse", "body"):
                waiting += reversed(getattr(statement, inner, []))
            for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
                waiting += reversed(part.body)


def _own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the nodes of a statement without those of the statements inside it.

    Walking each statement whole takes minutes for a chain of some thousand `elif`.
    """
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]
