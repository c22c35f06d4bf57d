"""The call that creates vLLM's engine in a rollout: its fixed arguments, and the keys of the others.

verl calls `LLM(model=..., dtype=config.dtype, ..., **engine_kwargs)`
(verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py@v0.5.0): an argument that is given twice is a TypeError. The
asynchronous server has a call of its own (vllm_async_server.py). The adaptation rollout-engine-args lets the recipe's
value win for some. verl 0.8's server writes a mapping, `{"dtype": config.dtype, ..., **engine_kwargs}`, in which the
recipe's keywords come last and win.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from npu_rl.recipes.trainer_code.source_index import SourceIndex
from npu_rl.recipes.trainer_code.syntax_nodes import assigned_values, text_of

_ROLLOUTS = "verl/workers/rollout/vllm_rollout"
_KEYWORDS = "engine_kwargs"
_OVERRIDABLE = "npu_rl_runtime.rollout_engine_args._FREE"

ADAPTATION = "rollout-engine-args"


@dataclass(frozen=True)
class PassedArgument:
    """An argument that the trainer passes.

    Attributes:
        where: file:line.
        own: The rollout's key that its value comes from; empty if there is none.
        unchanged: Whether it is that key's value as it is.
    """

    where: str
    own: str
    unchanged: bool


@dataclass(frozen=True)
class EngineCall:
    """The call that creates the engine.

    Attributes:
        fixed: The arguments that a recipe can't set, by name; empty if the tree has no such call.
        passed: All arguments that the trainer passes, those that a recipe can set, too.
    """

    fixed: Mapping[str, PassedArgument]
    passed: Mapping[str, PassedArgument]


def find_engine_call(sources: SourceIndex, mode: object, adapted: bool) -> EngineCall:
    """Find the call for a rollout mode, which is "async" or any other.

    Args:
        adapted: Whether the adaptation is on.
    """
    fixed: dict[str, PassedArgument] = {}
    passed: dict[str, PassedArgument] = {}
    for file, content in sources.texts(_ROLLOUTS).items():
        server = "async" in file.rpartition("/")[2]
        tree = sources.tree(file) if b"**engine_kwargs" in content and server == (mode == "async") else None
        for around, call in _calls(tree) if tree else ():
            free = _popped(around) | (_overridable(sources, call) if adapted else frozenset())
            for name, argument in _passed_arguments(file, around, call).items():
                passed.setdefault(name, argument)
                if name not in free and isinstance(call, ast.Call):
                    fixed.setdefault(name, argument)
    return EngineCall(fixed, passed)


def _calls(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.Call | ast.Dict]]:
    """Yield the calls and mappings with `**engine_kwargs`, each with the function around it."""
    functions = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for around in (*functions, tree):
        for node in (node for node in ast.walk(around) if isinstance(node, (ast.Call, ast.Dict))):
            if any(name is None and _is_keywords(value) for name, value in _items(node)):
                yield around, node


def _items(node: ast.Call | ast.Dict) -> Iterator[tuple[str | None, ast.expr]]:
    """Yield the names and values of a call's keywords or a mapping's items; the name is None for `**value`."""
    if isinstance(node, ast.Call):
        yield from ((item.arg, item.value) for item in node.keywords)
        return
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None or isinstance(key, ast.Constant):
            yield (str(key.value) if key else None), value


def _popped(around: ast.AST) -> frozenset[str]:
    """Return the names in `engine_kwargs.pop("name", ...)`, whose values the trainer takes from the recipe."""
    calls = [node for node in ast.walk(around) if isinstance(node, ast.Call) and node.args]
    names = (text_of(call.args[0]) for call in calls if ast.unparse(call.func) == f"{_KEYWORDS}.pop")
    return frozenset(filter(None, names))


def _is_keywords(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == _KEYWORDS


def _passed_arguments(file: str, around: ast.AST, call: ast.Call | ast.Dict) -> dict[str, PassedArgument]:
    local = assigned_values(ast.walk(around))
    result = {}
    for name, given in _items(call):
        if name:
            value = local.get(given.id, given) if isinstance(given, ast.Name) else given
            own = next((key for node in ast.walk(value) if (key := _own_key(node))), "")
            result[name] = PassedArgument(f"{file}:{given.lineno}", own, _own_key(given) != "")
    return result


def _own_key(node: ast.AST) -> str:
    """Return the key of `config.KEY` or `self.config.get("KEY")`."""
    if isinstance(node, ast.Attribute) and node.attr not in ("get", "config") and _is_config(node.value):
        return node.attr
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        first = node.args[0] if node.args else None
        if _is_config(node.func.value) and isinstance(first, ast.Constant):
            return str(first.value)
    return ""


def _is_config(node: ast.expr) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node) in ("config", "self.config")


def _overridable(sources: SourceIndex, call: ast.Call | ast.Dict) -> frozenset[str]:
    """Return the fixed arguments that a recipe may set because an adaptation wraps the call."""
    hook = call.func if isinstance(call, ast.Call) else None
    through = isinstance(hook, ast.Call) and any(map(_is_keywords, hook.args))
    found = sources.find(_OVERRIDABLE) if through else None
    value = found[1].value if found and isinstance(found[1], ast.Assign) else None
    return frozenset(filter(None, map(text_of, ast.walk(value)))) if value else frozenset()
