"""The call that makes vLLM's engine in a rollout: which arguments the trainer fixes, and from which key of its own.

verl calls `LLM(model=..., dtype=config.dtype, ..., **engine_kwargs)` (verl/workers/rollout/vllm_rollout/
vllm_rollout_spmd.py@v0.5.0): an argument that stands on both sides is a TypeError. The asynchronous server has a call
of its own (vllm_async_server.py). Our adaptation rollout-engine-args lets the recipe's value win for some.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from npu_rl.trainer_code.source_index import Sources

_ROLLOUTS = "verl/workers/rollout/vllm_rollout"
_KEYWORDS = "engine_kwargs"
_MAY_BE_SET = "npu_rl_runtime.rollout_engine_args._MAY_BE_SAID"

ADAPTATION = "rollout-engine-args"


@dataclass(frozen=True)
class Fixed:
    """One argument. where: file:line. own: the rollout's key it comes from, "" if none. unchanged: it is its value."""

    where: str
    own: str
    unchanged: bool


@dataclass(frozen=True)
class EngineCall:
    """fixed: what the trainer passes and a recipe may not; empty if there is no such call in the tree."""

    fixed: Mapping[str, Fixed]


def engine_call(sources: Sources, mode: object, merged: bool) -> EngineCall:
    """The call of the rollout of one mode, "async" or any other. merged: whether the adaptation is on."""
    fixed: dict[str, Fixed] = {}
    for file, content in sources.texts(_ROLLOUTS).items():
        server = "async" in file.rpartition("/")[2]
        tree = sources.tree(file) if b"**engine_kwargs" in content and server == (mode == "async") else None
        for around, call in _calls(tree) if tree else ():
            free = _free(sources, call) if merged else frozenset()
            for name, argument in _fixed(file, around, call).items():
                if name not in free:
                    fixed.setdefault(name, argument)
    return EngineCall(fixed)


def _calls(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.Call]]:
    """The calls with `**engine_kwargs`, each with the function it stands in."""
    functions = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for around in (*functions, tree):
        for node in ast.walk(around):
            if isinstance(node, ast.Call) and any(_is_spread(item) for item in node.keywords):
                yield around, node


def _is_spread(item: ast.keyword) -> bool:
    return item.arg is None and isinstance(item.value, ast.Name) and item.value.id == _KEYWORDS


def _fixed(file: str, around: ast.AST, call: ast.Call) -> dict[str, Fixed]:
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
            result[item.arg] = Fixed(f"{file}:{item.value.lineno}", own, _own_key(item.value) != "")
    return result


def _own_key(node: ast.AST) -> str:
    """The key of `config.KEY` or `self.config.get("KEY")`."""
    if isinstance(node, ast.Attribute) and node.attr not in ("get", "config") and _is_config(node.value):
        return node.attr
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        first = node.args[0] if node.args else None
        if _is_config(node.func.value) and isinstance(first, ast.Constant):
            return str(first.value)
    return ""


def _is_config(node: ast.expr) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node) in ("config", "self.config")


def _free(sources: Sources, call: ast.Call) -> frozenset[str]:
    """What a recipe may set although the call fixes it: where the tree's call goes through our adaptation."""
    through = isinstance(call.func, ast.Call) and any(
        isinstance(item, ast.Name) and item.id == _KEYWORDS for item in call.func.args
    )
    found = sources.find(_MAY_BE_SET) if through else None
    value = found[1].value if found and isinstance(found[1], ast.Assign) else None
    names = [node.value for node in ast.walk(value) if isinstance(node, ast.Constant)] if value else []
    return frozenset(name for name in names if isinstance(name, str))
