"""Branches of the tree's code on the device or on a version, which differ between a rehearsal and the run."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.common.bounded import syntax_tree
from npu_rl.recipes.trainer_code.source_files import read_source
from npu_rl.rehearsal.run_differences.platform_answers import platform_answer
from npu_rl.rehearsal.run_differences.version_conditions import version_truth

if TYPE_CHECKING:
    from collections.abc import Mapping

    from packaging.version import Version


@dataclass(frozen=True)
class BranchFacts:
    """Facts that conditions of the tree depend on.

    Attributes:
        device: cpu, npu or cuda.
        versions: Of Python and torch, as far as they are known.
        missing: Packages of the other side that are not there.
    """

    device: str
    versions: Mapping[str, Version] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()


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
    tests = {id(part) for node in ast.walk(tree) for test in _tests(node) for part in ast.walk(test)}
    for node in ast.walk(tree):
        for test in _tests(node):
            here, there = _truth(test, rehearsal), _truth(test, run)
            if here != there:
                in_run = there if there is not None else not here  # then the run may go the other way
                yield DeviceBranch(file, test.lineno, ast.unparse(test), _missed(node, in_run=in_run))
        if isinstance(node, ast.BoolOp) and id(node) not in tests:
            rest = _not_evaluated(node, rehearsal)
            if rest and _not_evaluated(node, run) != rest:
                yield DeviceBranch(file, node.lineno, ast.unparse(node), _span(rest))
        elif isinstance(node, ast.Try):
            absent = _imported(node) & (rehearsal.missing - run.missing)
            if absent:
                yield DeviceBranch(file, node.lineno, f"try: import {min(absent)}", _span(node.body))


def _tests(node: ast.AST) -> list[ast.expr]:
    """Return the conditions that decide which parts of a node run."""
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        return [node.test]
    return list(node.ifs) if isinstance(node, ast.comprehension) else []


def _missed(node: ast.AST, *, in_run: bool) -> tuple[int, int] | None:
    """Return the lines that only the run executes if its condition is `in_run`."""
    if isinstance(node, (ast.If, ast.While)):
        return _span(node.body if in_run else node.orelse)
    if isinstance(node, ast.comprehension):
        return _span(node.ifs) if in_run else None
    return _span([node])


def _span(nodes: Sequence[ast.AST]) -> tuple[int, int] | None:
    """Return the first and the last line of some statements or expressions."""
    if not nodes:
        return None
    first, last = (getattr(nodes[at], "lineno", 0) for at in (0, -1))
    return first, getattr(nodes[-1], "end_lineno", None) or last


def _not_evaluated(node: ast.BoolOp, facts: BranchFacts) -> list[ast.expr]:
    """Return the operands that are skipped because one before them decides."""
    decisive = isinstance(node.op, ast.Or)
    for number, part in enumerate(node.values):
        if _truth(part, facts) is decisive:
            return node.values[number + 1 :]
    return []


def _imported(node: ast.Try) -> set[str]:
    """Return the packages that the body of a `try` imports."""
    names = set()
    for statement in node.body:
        if isinstance(statement, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            names.add(statement.module.partition(".")[0])
    return names


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
    value = platform_answer(node, facts.device)
    return None if value is None else bool(value)


def _comparison(node: ast.Compare, device: str) -> bool | None:
    value, operator, other = platform_answer(node.left, device), node.ops[0], node.comparators[0]
    if isinstance(other, ast.Call) and ast.unparse(other.func) == "torch.device" and len(other.args) == 1:
        value, other = platform_answer(ast.Attribute(node.left, "type"), device), other.args[0]
    if not isinstance(value, str):
        return None
    if isinstance(operator, (ast.Eq, ast.NotEq)) and isinstance(other, ast.Constant):
        return (value == other.value) is isinstance(operator, ast.Eq)
    if isinstance(operator, (ast.In, ast.NotIn)) and isinstance(other, (ast.List, ast.Tuple, ast.Set)):
        values = [element.value for element in other.elts if isinstance(element, ast.Constant)]
        known = len(values) == len(other.elts)
        return (value in values) is isinstance(operator, ast.In) if known else None
    return None
