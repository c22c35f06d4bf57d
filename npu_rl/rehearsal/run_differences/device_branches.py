"""Branches of the tree's code on the device or on a version, which differ between a rehearsal and the run."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.common.bounded import syntax_tree
from npu_rl.recipes.trainer_code.source_files import read_source
from npu_rl.rehearsal.run_differences.version_conditions import version_truth

if TYPE_CHECKING:
    from collections.abc import Mapping

    from packaging.version import Version

_Value = bool | str | None  # None: not known

# What expressions are on a CPU and, by device, in the run: verl/utils/device.py@0.5.0, transformers.utils.import_utils
# and vllm/platforms/interface.py@v0.9.1. torch.cuda.is_available is not among them: MindSpeed makes it the NPU's.
_ANSWERS: tuple[tuple[re.Pattern[str], _Value, dict[str, _Value]], ...] = (
    (
        re.compile(r"(?:\w+\.)*(?:is_npu_available|is_torch_npu_available)(?:\(.*\))?"),
        False,
        {"npu": True, "cuda": False},
    ),
    (re.compile(r"(?:\w+\.)*is_cuda_available(?:\(\))?"), False, {"npu": False, "cuda": True}),
    (re.compile(r"(?:\w+\.)*current_platform\.is_cpu\(\)"), True, {"npu": False, "cuda": False}),
    (re.compile(r"(?:\w+\.)*current_platform\.is_cuda\(\)"), False, {"npu": False, "cuda": True}),
    (
        re.compile(
            r"get_device_name\(\)|(?:self\.)?device_name|(?:\w+\.)*current_platform\.device_(?:type|name)"
        ),
        "cpu",
        {"npu": "npu", "cuda": "cuda"},
    ),
    (  # npu_rl_runtime/rollout_dp_groups/groups.py: vllm-ascend's platform
        re.compile(r"type\(current_platform\)\.__module__\.partition\('\.'\)\[0\]"),
        "vllm",
        {"npu": "vllm_ascend", "cuda": "vllm"},
    ),
)


@dataclass(frozen=True)
class BranchFacts:
    """Facts that conditions of the tree depend on.

    Attributes:
        device: cpu, npu or cuda.
        versions: Of Python and torch, as far as they are known.
    """

    device: str
    versions: Mapping[str, Version] = field(default_factory=dict)


@dataclass(frozen=True)
class DeviceBranch:
    """A condition whose result differs in a rehearsal.

    Attributes:
        file: Path in the tree.
        line: Line of the condition, from 1.
        condition: Its text.
        lines: First and last line of what the run executes and the rehearsal does not; None for what only the
            rehearsal executes.
    """

    file: str
    line: int
    condition: str
    lines: tuple[int, int] | None

    def text(self) -> str:
        """Return the branch as one line of text."""
        if self.lines is None:
            return f"{self.file}:{self.line}: {self.condition}: runs here only"
        first, last = self.lines
        span = f"line {first}" if first == last else f"lines {first} to {last}"
        return f"{self.file}:{self.line}: {self.condition}: {span} not rehearsed"


def device_branches(
    code: Path, files: Iterable[str], here: BranchFacts, run: BranchFacts
) -> list[DeviceBranch]:
    """Return the branches in some files whose condition differs between the rehearsal and the run.

    Args:
        files: Python files, as paths in the tree.
        here: What holds in the rehearsal.
        run: What holds in the run, on an NPU or a CUDA device.
    """
    found = []
    for file in sorted(set(files)):
        tree = syntax_tree(read_source(code / file) or b"")
        if tree is not None:
            with contextlib.suppress(RecursionError):  # a condition nested more deeply than anyone writes
                found += list(_branches_of(tree, file, here, run))
    return found


def _branches_of(
    tree: ast.AST, file: str, rehearsal: BranchFacts, run: BranchFacts
) -> Iterator[DeviceBranch]:
    for node in ast.walk(tree):
        if not isinstance(node, (ast.If, ast.IfExp)):
            continue
        here, there = _truth(node.test, rehearsal), _truth(node.test, run)
        if here == there:
            continue
        text = ast.unparse(node.test)
        if isinstance(node, ast.IfExp):
            yield DeviceBranch(file, node.lineno, text, (node.lineno, node.end_lineno or node.lineno))
            continue
        in_run = there if there is not None else not here  # then the run may go the other way
        missed = node.body if in_run else node.orelse
        lines = (missed[0].lineno, missed[-1].end_lineno or missed[-1].lineno) if missed else None
        yield DeviceBranch(file, node.lineno, text, lines)


def _truth(node: ast.expr, facts: BranchFacts) -> bool | None:
    """Return whether a condition holds; None if it depends on more than the facts."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = _truth(node.operand, facts)
        return None if inner is None else not inner
    if isinstance(node, ast.BoolOp):
        parts = [_truth(part, facts) for part in node.values]
        decisive = isinstance(node.op, ast.Or)
        if decisive in parts:
            return decisive
        return None if None in parts else not decisive
    if (found := version_truth(node, facts.versions)) is not None:
        return found
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _comparison(node, facts.device)
    value = _value(node, facts.device)
    return None if value is None else bool(value)


def _comparison(node: ast.Compare, device: str) -> bool | None:
    value, operator, other = _value(node.left, device), node.ops[0], node.comparators[0]
    if not isinstance(value, str):
        return None
    if isinstance(operator, (ast.Eq, ast.NotEq)) and isinstance(other, ast.Constant):
        return (value == other.value) is isinstance(operator, ast.Eq)
    if isinstance(operator, (ast.In, ast.NotIn)) and isinstance(other, (ast.List, ast.Tuple, ast.Set)):
        values = [element.value for element in other.elts if isinstance(element, ast.Constant)]
        known = len(values) == len(other.elts)
        return (value in values) is isinstance(operator, ast.In) if known else None
    return None


def _value(node: ast.expr, device: str) -> _Value:
    text = ast.unparse(node)
    for pattern, on_cpu, in_run in _ANSWERS:
        if pattern.fullmatch(text):
            return on_cpu if device == "cpu" else in_run.get(device)
    return None
