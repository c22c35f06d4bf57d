"""The call that creates vLLM's engine in a rollout: which arguments the trainer fixes, and from which of its keys.

verl calls `LLM(model=..., dtype=config.dtype, ..., **engine_kwargs)`
(verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py@v0.5.0): an argument that is given twice is a TypeError. The
asynchronous server has a call of its own (vllm_async_server.py). The adaptation rollout-engine-args lets the recipe's
value win for some.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from npu_rl.trainer_code.source_index import SourceIndex

_ROLLOUTS = "verl/workers/rollout/vllm_rollout"
_KEYWORDS = "engine_kwargs"
_OVERRIDABLE = "npu_rl_runtime.rollout_engine_args._FREE"

ADAPTATION = "rollout-engine-args"


@dataclass(frozen=True)
class FixedArgument:
    """An argument that the trainer fixes.

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
    """

    fixed: Mapping[str, FixedArgument]


def find_engine_call(sources: SourceIndex, mode: object, adapted: bool) -> EngineCall:
    """Find the call for one mode of the rollout, "async" or any other.

    Args:
        adapted: Whether the adaptation is on.
    """
    fixed: dict[str, FixedArgument] = {}
    for file, content in sources.texts(_ROLLOUTS).items():
        server = "async" in file.rpartition("/")[2]
        tree = sources.tree(file) if b"**engine_kwargs" in content and server == (mode == "async") else None
        for around, call in _calls(tree) if tree else ():
            free = _popped(around) | (_overridable(sources, call) if adapted else frozenset())
            for name, argument in _fixed_arguments(file, around, call).items():
                if name not in free:
                    fixed.setdefault(name, argument)
    return EngineCall(fixed)


def _calls(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.Call]]:
    """Yield the calls with `**engine_kwargs`, each with the function around it."""
    functions = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for around in (*functions, tree):
        for node in ast.walk(around):
            if isinstance(node, ast.Call) and any(_is_spread(item) for item in node.keywords):
                yield around, node


def _popped(around: ast.AST) -> frozenset[str]:
    """Return the names of `engine_kwargs.pop("name", ...)`: the trainer passes the recipe's own value."""
    calls = [node for node in ast.walk(around) if isinstance(node, ast.Call) and node.args]
    names = (call.args[0] for call in calls if ast.unparse(call.func) == f"{_KEYWORDS}.pop")
    return frozenset(
        name.value for name in names if isinstance(name, ast.Constant) and isinstance(name.value, str)
    )


def _is_spread(item: ast.keyword) -> bool:
    return item.arg is None and isinstance(item.value, ast.Name) and item.value.id == _KEYWORDS


def _fixed_arguments(file: str, around: ast.AST, call: ast.Call) -> dict[str, FixedArgument]:
    local = {
        target.id: node.value
        for node in ast.walk(around)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    result = {}
    for item in call.keywords:
        if item.arg:
            value = local.get(item.value.id, item.value) if isinstance(item.value, ast.Name) else item.value
            own = next((key for node in ast.walk(value) if (key := _own_key(node))), "")
            result[item.arg] = FixedArgument(f"{file}:{item.value.lineno}", own, _own_key(item.value) != "")
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


def _overridable(sources: SourceIndex, call: ast.Call) -> frozenset[str]:
    """Return the fixed arguments that a recipe may set because the call goes through our adaptation."""
    through = isinstance(call.func, ast.Call) and any(
        isinstance(item, ast.Name) and item.id == _KEYWORDS for item in call.func.args
    )
    found = sources.find(_OVERRIDABLE) if through else None
    value = found[1].value if found and isinstance(found[1], ast.Assign) else None
    names = [node.value for node in ast.walk(value) if isinstance(node, ast.Constant)] if value else []
    return frozenset(name for name in names if isinstance(name, str))
