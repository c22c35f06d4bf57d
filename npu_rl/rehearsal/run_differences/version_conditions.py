"""Conditions of the tree's code on the versions of Python and torch."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from packaging.version import InvalidVersion, Version

_PYTHON = re.compile(r"(?:sys\.)?version_info(?:\[:\d\])?")
_TORCH = re.compile(
    r"(?:[\w.]+\()?torch\.__version__\)?|(?:\w+\.)*get_torch_version\(\)|torch_version|TORCH_VERSION"
)
# megatron/core/utils.py@core_v0.12.1, vllm/utils.py@v0.9.1, transformers/utils/import_utils.py@v4.52.4
_AT_LEAST = frozenset({"is_torch_min_version", "is_torch_equal_or_newer", "is_torch_greater_or_equal"})
_OPERATORS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def version_truth(node: ast.expr, versions: Mapping[str, Version]) -> bool | None:
    """Return whether a condition on one version holds; None if it is on something else, or the version is unknown.

    Args:
        versions: Versions of `python` and `torch`, as far as they are known.
    """
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OPERATORS:
        return _comparison(ast.unparse(node.left), node.ops[0], node.comparators[0], versions)
    if isinstance(node, ast.Call) and len(node.args) == 1:
        return _call(node, versions)
    return None


def _comparison(
    left: str, operation: ast.cmpop, right: ast.expr, versions: Mapping[str, Version]
) -> bool | None:
    compare = _OPERATORS[type(operation)]
    if _PYTHON.fullmatch(left):
        release, python = _numbers(right), versions.get("python")
        if python is None or release is None:
            return None
        found = python.release[: int(left[-2])] if left.endswith("]") else python.release
        return compare(found, release)
    if _TORCH.fullmatch(left):
        version, torch = _version(right), versions.get("torch")
        # torch compares the text of its version as a version, too: torch/torch_version.py@v2.5.1
        return None if torch is None or version is None else compare(torch, version)
    return None


def _call(node: ast.Call, versions: Mapping[str, Version]) -> bool | None:
    torch, version = versions.get("torch"), _version(node.args[0])
    if torch is None or version is None:
        return None
    function = ast.unparse(node.func)
    if function.rpartition(".")[2] in _AT_LEAST:
        return torch >= version
    if function.endswith(".startswith") and _TORCH.fullmatch(function.removesuffix(".startswith")):
        return str(torch).startswith(str(version))
    return None


def _numbers(node: ast.expr) -> tuple[int, ...] | None:
    if not isinstance(node, ast.Tuple):
        return None
    numbers = [part.value for part in node.elts if isinstance(part, ast.Constant)]
    known = len(numbers) == len(node.elts) and all(isinstance(number, int) for number in numbers)
    return tuple(numbers) if known else None  # type: ignore[arg-type]


def _version(node: ast.expr) -> Version | None:
    """Return the version in a string literal, which may be the argument of a call: `version.parse("2.6")`."""
    if isinstance(node, ast.Call) and len(node.args) == 1:
        node = node.args[0]
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        return None
    try:
        return Version(node.value)
    except InvalidVersion:
        return None
