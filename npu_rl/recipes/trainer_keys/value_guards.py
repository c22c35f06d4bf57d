"""The treatment of a value in one function: the names it is compared with, and the errors it causes.

The syntax tree is walked, nothing is run. A test that depends on something other than the value may go either way.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from npu_rl.recipes.trainer_code.syntax_nodes import text_of

Resolve = Callable[[ast.expr], Any]
"""Returns what a name stands for: a constant, a collection of constants, or UNKNOWN."""

UNKNOWN = object()

_ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_TYPES: Mapping[str, type] = {kind.__name__: kind for kind in (str, bool, int, float, dict)}
_OPERATORS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.eq,
    ast.IsNot: operator.ne,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}


@dataclass(frozen=True)
class Refusal:
    """A line that raises because of the value.

    Attributes:
        certain: Whether the function always reaches it with that value.
    """

    line: int
    certain: bool


@dataclass(frozen=True)
class GuardedFunction:
    """A function, and the expressions in it that denote the value.

    Attributes:
        body: Its statements.
        texts: The expressions that are the value, each with the line up to which it is.
        resolve: Returns the constant that a name stands for.
        nodes: Its comparisons, items, calls and loops.
        methods: The methods of its class.
        indexed: Returns what `Enumeration(value)` or `NAMES[value]` accepts, or None.
        parts: The names of lists of the texts between the value's commas.
    """

    body: Sequence[ast.stmt]
    texts: Mapping[str, float]
    resolve: Resolve
    nodes: Sequence[ast.AST] = ()
    methods: Mapping[str, ast.FunctionDef] = field(default_factory=dict)
    indexed: Callable[[ast.expr], Collection[str] | None] = lambda _node: None
    parts: Collection[str] = ()

    def find_refusal(self, value: Any) -> Refusal | None:
        """Return the first line that raises because of this value, or None."""
        walk = _GuardWalk(self, value)
        walk.block(self.body, certain=True, decided=False)
        return walk.refusals[0] if walk.refusals else None

    def compared_names(self) -> list[str]:
        """Return the texts that the value is compared with or looked up among, in order."""
        loops = [node for node in self.nodes if isinstance(node, ast.For) and self.has_items(node.iter)]
        items = {loop.target.id: math.inf for loop in loops if isinstance(loop.target, ast.Name)}
        whole = replace(self, texts={**self.texts, **items})
        found = (constant for node in self.nodes for constant in whole._compared(node))
        return list(dict.fromkeys(name for name in found if isinstance(name, str)))

    def compared(self, tree: ast.AST) -> Iterator[Any]:
        """Yield every constant in a part of the function that the value is compared with or looked up among."""
        for node in ast.walk(tree):
            yield from self._compared(node)

    def is_value(self, node: ast.expr) -> bool:
        """Return whether an expression is the value."""
        return node.lineno <= self.texts.get(expression_text(node), 0)

    def has_items(self, node: ast.expr) -> bool:
        """Return whether an expression is the value (which may be a list) or its parts."""
        return self.is_value(node) or (isinstance(node, ast.Name) and node.id in self.parts)

    def items(self, node: ast.expr, value: Any) -> list[Any]:
        """Return the items of a loop over an expression; none if they are not the value's."""
        if isinstance(value, list) and self.is_value(node):
            return value
        by_comma = isinstance(value, str) and not self.is_value(node) and self.has_items(node)
        return [part.strip() for part in value.split(",") if part.strip()] if by_comma else []

    def _compared(self, node: ast.AST) -> Iterator[Any]:
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(self.is_value(side) for side in sides):
                for side in sides:
                    known = None if self.is_value(side) else self.constant(side)
                    yield from known if isinstance(known, (list, tuple, set, dict)) else [known]
        elif isinstance(node, (ast.Call, ast.Subscript)):
            yield from self.looked_up(node) or ()

    def looked_up(self, node: ast.expr) -> Collection[str] | None:
        """Return the names of NAMES in `NAMES[value]`, or of the enumeration in `NAMES(value)`."""
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and self.is_value(node.slice):
            return self.indexed(node)
        if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
            return self.indexed(node) if self.is_value(node.args[0]) else None
        return None

    def constant(self, node: ast.expr) -> Any:
        """Return the value of an expression without running it, or UNKNOWN."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self.constant(node.operand)
            return -inner if isinstance(inner, (int, float)) else UNKNOWN
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            items = [self.constant(item) for item in node.elts]
            return UNKNOWN if any(item is UNKNOWN for item in items) else items
        return self.resolve(node) if isinstance(node, (ast.Name, ast.Attribute, ast.Call)) else UNKNOWN


class _GuardWalk:
    """A walk of one function with one value."""

    def __init__(self, function: GuardedFunction, value: Any) -> None:
        self._function = function
        self._value = value
        self._called: set[str] = set()
        self.refusals: list[Refusal] = []

    def block(self, statements: Sequence[ast.stmt], *, certain: bool, decided: bool) -> bool:
        """Walk statements and return whether they always end the function or loop.

        Args:
            certain: Whether this block is always reached with the value.
            decided: Whether the value alone decided the last test that led here.
        """
        for statement in statements:
            if isinstance(statement, ast.If):
                test = self._evaluate(statement.test)
                if test is None:
                    first = self.block(statement.body, certain=False, decided=False)
                    second = self.block(statement.orelse, certain=False, decided=False)
                    if first and second:
                        return True
                    if first or second:
                        decided = False
                    certain = certain and not _may_leave(statement)
                else:
                    taken, left = statement.body, statement.orelse
                    if not test:
                        taken, left = left, taken
                    if self.block(taken, certain=certain, decided=True):
                        return True
                    decided = decided or self._is_left_by_name(statement.test, left)
            elif isinstance(statement, ast.Raise):
                if decided:
                    self.refusals.append(Refusal(statement.lineno, certain))
                return True
            elif isinstance(statement, ast.Assert):
                if self._evaluate(statement.test) is False:
                    self.refusals.append(Refusal(statement.lineno, certain))
                    return True
            elif self._walk_other(statement, certain=certain, decided=decided):
                return True
        return False

    def _is_left_by_name(self, test: ast.expr, left: Sequence[ast.stmt]) -> bool:
        """Return whether the value passed a test only by differing from all names that end the function."""
        ends = bool(left) and isinstance(left[-1], _ENDS)
        return ends and any(isinstance(name, str) for name in self._function.compared(test))

    def _walk_other(self, statement: ast.stmt, *, certain: bool, decided: bool) -> bool:
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            return self.block(statement.body, certain=certain, decided=decided)
        if isinstance(statement, ast.Try):
            # an error raised in it may be caught
            return not statement.handlers and self.block(statement.body, certain=certain, decided=decided)
        if isinstance(statement, (ast.For, ast.AsyncFor)):
            self._loop(statement)
            return False
        if isinstance(statement, ast.While):
            self.block(statement.body, certain=False, decided=False)
            return False
        if isinstance(statement, _NESTED):
            return False
        self._check_lookups(statement, certain)
        self._walk_own_method(statement, certain)
        return isinstance(statement, _ENDS)

    def _loop(self, statement: ast.For | ast.AsyncFor) -> None:
        """Walk a loop with each item of the value. Other loops may have no iterations."""
        function = self._function
        values = function.items(statement.iter, self._value)
        if not values:
            self.block(statement.body, certain=False, decided=False)
        elif isinstance(statement.target, ast.Name):
            item = {statement.target.id: math.inf}
            inner = replace(function, body=statement.body, texts=item)
            for value in values:
                refusal = inner.find_refusal(value)
                self.refusals += [refusal] if refusal else []

    def _check_lookups(self, statement: ast.stmt, certain: bool) -> None:
        """Refuse a value that `NAMES[value]` or `Enumeration(value)`, certainly evaluated, doesn't accept."""
        if not isinstance(self._value, str):
            return
        for node in _certainly_evaluated(statement):
            names = self._function.looked_up(node)
            if names is not None and self._value not in names:
                self.refusals.append(Refusal(node.lineno, certain))

    def _walk_own_method(self, statement: ast.stmt, certain: bool) -> None:
        """Walk the method that a statement `self.check()` calls."""
        call = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and not call.args:
            name = call.func.attr
            method = self._function.methods.get(name)
            is_own = getattr(call.func.value, "id", "") == "self"
            if method is not None and is_own and name not in self._called:
                self._called.add(name)
                self.block(method.body, certain=certain, decided=False)

    def _evaluate(self, node: ast.expr) -> bool | None:
        """Return the result of a condition for the value; None if it depends on more than the value."""
        if isinstance(node, ast.BoolOp):
            parts = [self._evaluate(part) for part in node.values]
            short = isinstance(node.op, ast.Or)
            if short in parts:
                return short
            return None if None in parts else not short
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self._evaluate(node.operand)
            return None if inner is None else not inner
        if isinstance(node, ast.Compare):
            return self._compare(node)
        if isinstance(node, ast.Call):
            return self._is_instance(node)
        is_one = self._function.is_value(node) and not isinstance(self._value, list)
        return bool(self._value) if is_one else None

    def _compare(self, node: ast.Compare) -> bool | None:
        function = self._function
        sides = [node.left, *node.comparators]
        if isinstance(self._value, list) or not any(function.is_value(side) for side in sides):
            return None
        known = [self._value if function.is_value(side) else function.constant(side) for side in sides]
        if any(item is UNKNOWN for item in known):
            return None
        try:
            steps = zip(known, node.ops, known[1:], strict=False)
            return all(_OPERATORS[type(sign)](one, other) for one, sign, other in steps)
        except TypeError:
            return None

    def _is_instance(self, node: ast.Call) -> bool | None:
        if not (isinstance(node.func, ast.Name) and node.func.id == "isinstance" and len(node.args) == 2):
            return None
        named = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
        types = [_TYPES.get(item.id) if isinstance(item, ast.Name) else None for item in named]
        if not self._function.is_value(node.args[0]) or isinstance(self._value, (list, dict)):
            return None  # OmegaConf passes a ListConfig, which is no list
        if isinstance(self._value, tuple(filter(None, types))):
            return True
        return False if all(types) else None


def expression_text(node: ast.AST) -> str:
    """Return the normalized text of a name or of a read from one; empty for other expressions.

    `a.b`, `a["b"]`, `a.get("b", 1)` and `getattr(a, "b")` are all `a.b`.
    """
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return _read(node.value, node.attr)
    if isinstance(node, ast.Subscript):
        return _read(node.value, text_of(node.slice))
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
        return _read(node.func.value, text_of(node.args[0]))
    if isinstance(node.func, ast.Name) and node.func.id == "getattr" and len(node.args) > 1:
        return _read(node.args[0], text_of(node.args[1]))
    return ""


def _read(holder: ast.expr, name: str | None) -> str:
    before = expression_text(holder) if name else ""
    return before and f"{before}.{name}"


@lru_cache(maxsize=4096)
def _may_leave(statement: ast.stmt) -> bool:
    """Return whether a statement may leave the function or loop without an error."""
    return any(isinstance(node, (ast.Return, ast.Continue, ast.Break)) for node in ast.walk(statement))


def _certainly_evaluated(statement: ast.stmt) -> Iterator[ast.expr]:
    """Yield the expressions of a simple statement that are always evaluated."""
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.IfExp, ast.BoolOp, ast.comprehension, ast.GeneratorExp, *_NESTED)):
            continue
        if isinstance(node, ast.expr):
            yield node
        todo.extend(ast.iter_child_nodes(node))
