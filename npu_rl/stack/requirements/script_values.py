"""The arguments that a setup.py passes to setup(), evaluated from its syntax tree without running it.

Strings, paths, lists, dicts and the script's own functions are evaluated. A value derived from a file's lines
represents that file; a condition on such a line may hold or not, so both branches count. Environment variables have
their defaults. Every name that another statement binds or mentions is unknown.
"""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Iterator, Sequence

from npu_rl.stack.requirements.script_names import (
    FileLines,
    ForeignName,
    Function,
    Method,
    Scope,
    Unknown,
    changed_by_functions,
    own_nodes,
)

_MOST_STEPS = 100_000  # statements, expressions and items: about a second
_LONGEST = 500  # characters of a text that is put together
_OF_BOTH = ("strip", "lstrip", "rstrip", "splitlines", "startswith", "endswith")
_OF_LINES = (*_OF_BOTH, "read", "readlines", "decode")
_OF_TEXTS = (*_OF_BOTH, "split", "lower")
_OF_PATHS = ("resolve", "absolute", "as_posix", "joinpath")
_OPENS = ("open", "io.open", "codecs.open")
_SAME = ("str", "os.path.abspath", "os.path.realpath", "os.fspath")


class _Leave(Exception):
    """`continue` or `break`."""


class _Return(Exception):
    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value


class ScriptValues:
    """The values of a script that calls setup() once.

    Attributes:
        keywords: The keywords of the call, when it is reached. Values, and items of lists, may be Unknown; "**" has a
            dict of keywords that is Unknown.
    """

    def __init__(self, tree: ast.Module, call: ast.Call) -> None:
        self.keywords: dict[str, object] = {}
        self._call_of_setup = call
        self._steps = 0
        self._running: list[ast.FunctionDef] = []
        self._doubtful = False  # in a branch that a file's line decides
        self._changed_by_functions = set(changed_by_functions(tree))
        self._names = Scope()
        self._names.update(__file__="setup.py", __name__="__main__")
        self._run(tree.body, self._names)
        if not self.keywords:  # a condition that is unknown came before, or a function that nothing calls
            self._keep_keywords(self._names)

    def _keep_keywords(self, scope: Scope) -> None:
        for keyword in self._call_of_setup.keywords:
            value = self._or_unknown(keyword.value, scope, forget=False)
            if keyword.arg is None and isinstance(value, dict):
                self.keywords.update(value)
            else:
                self.keywords[keyword.arg or "**"] = value

    # Statements

    def _run(self, body: Sequence[ast.stmt], scope: Scope) -> bool:
        """Evaluate statements; return whether all could be evaluated."""
        complete = True
        for statement in body:
            try:
                complete &= self._statement(statement, scope)
            except Unknown as unknown:
                if any(isinstance(node, ast.Return) for node in own_nodes(statement)):
                    raise
                self._steps += scope.forget(statement, unknown)
                complete = False
        return complete

    def _statement(self, node: ast.stmt, scope: Scope) -> bool:
        self._spend(node)
        if isinstance(node, ast.FunctionDef) and not node.decorator_list:
            scope[node.name] = Function(node, scope)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            scope.add_imports(node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            value = self._value(node.value, scope)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                old = scope.find(target.id) if isinstance(target, ast.Name) else None
                self._undoubted([value, old if isinstance(old, FileLines) else value], node)
                scope.assign(target, value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            self._add(node, scope)
        elif isinstance(node, ast.Expr):
            self._expression(node.value, scope)
        elif isinstance(node, ast.Return):
            raise _Return(self._value(node.value, scope) if node.value is not None else None)
        elif isinstance(node, (ast.Continue, ast.Break)):
            raise _Leave
        elif isinstance(node, ast.With):
            for item in node.items:
                value = self._value(item.context_expr, scope)
                scope.assign(item.optional_vars or ast.Name("_", ast.Store()), value)
            return self._run(node.body, scope)
        elif isinstance(node, ast.If):
            return self._if(node, scope)
        elif isinstance(node, ast.For) and not node.orelse:
            for each in self._items(self._value(node.iter, scope), node.iter):
                self._spend(node)
                scope.assign(node.target, each)
                self._branch(node.body, scope)
        elif isinstance(node, ast.Try) and not node.orelse:
            imports = any(isinstance(one, (ast.Import, ast.ImportFrom)) for one in own_nodes(node))
            if node.handlers and (imports or not self._run(node.body, scope)):
                raise Unknown(node)
            return self._run(node.finalbody, scope)
        elif not isinstance(node, ast.Pass):
            raise Unknown(node)
        return True

    def _if(self, node: ast.If, scope: Scope) -> bool:
        try:
            test = self._test(node.test, scope)
        except Unknown:
            raise Unknown(node.test) from None
        if not isinstance(test, FileLines):
            return self._run(node.body if test else node.orelse, scope)
        before, self._doubtful = self._doubtful, True
        try:
            self._branch(node.body, scope)
            self._branch(node.orelse, scope)
        finally:
            self._doubtful = before
        return True

    def _branch(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        """Evaluate a branch that `continue` may end for some of a file's lines."""
        try:
            self._run(body, scope)
        except _Leave:
            pass
        except _Return:
            raise Unknown(body[0]) from None

    def _undoubted(self, values: Sequence[object], node: ast.AST) -> None:
        """Raise Unknown in a branch that depends on a file's line, unless all values are a file's lines."""
        if self._doubtful and not all(isinstance(value, FileLines) for value in values):
            raise Unknown(node)

    def _add(self, node: ast.AugAssign, scope: Scope) -> None:
        if not isinstance(node.target, ast.Name):
            raise Unknown(node)
        old, value = self._name(node.target, scope), self._value(node.value, scope)
        if isinstance(old, list):
            self._extend(old, self._items(value, node), node)
        else:
            self._undoubted([old, value], node)
            scope[node.target.id] = self._sum(old, value, node)

    def _extend(self, items: list[object], more: list[object], node: ast.AST) -> None:
        """Extend a list in place, and so under all its names."""
        self._undoubted(more, node)
        items += more

    def _expression(self, node: ast.expr, scope: Scope) -> None:
        if node is self._call_of_setup:
            self._keep_keywords(scope)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) == 1:
            items, value = self._value(node.func.value, scope), self._value(node.args[0], scope)
            if not isinstance(items, list) or node.func.attr not in ("append", "extend"):
                raise Unknown(node)
            self._extend(items, [value] if node.func.attr == "append" else self._items(value, node), node)
        elif not isinstance(node, ast.Constant) and getattr(getattr(node, "func", None), "id", "") != "print":
            self._value(node, scope)

    # Expressions

    def _value(self, node: ast.expr, scope: Scope) -> object:
        self._spend(node)
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self._name(node, scope)
        if isinstance(node, (ast.List, ast.Tuple)):
            return list(self._elements(node.elts, scope))
        if isinstance(node, ast.Dict):
            keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
            if not all(isinstance(key, str) for key in keys):
                raise Unknown(node)
            return dict(zip(keys, (self._or_unknown(value, scope) for value in node.values), strict=True))
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Div)):
            left, right = self._value(node.left, scope), self._value(node.right, scope)
            add = isinstance(node.op, ast.Add)
            return self._sum(left, right, node) if add else self._path([left, right], node)
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)) and len(node.generators) == 1:
            return list(self._comprehension(node, scope))
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._condition(node, [node.left, *node.comparators], scope)
        if isinstance(node, ast.BoolOp):
            return self._condition(node, node.values, scope)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self._condition(node, [node.operand], scope)
        if isinstance(node, ast.Subscript):
            return self._item(node, scope)
        if isinstance(node, ast.Attribute):
            value = self._value(node.value, scope)
            if isinstance(value, ForeignName):
                return ForeignName(f"{value.name}.{node.attr}")
            if isinstance(value, str) and node.attr == "parent":
                return posixpath.dirname(value) or "."
            return Method(value, node.attr)
        if isinstance(node, ast.Call):
            return self._call(node, scope)
        raise Unknown(node)

    def _or_unknown(self, node: ast.expr, scope: Scope, *, forget: bool = True) -> object:
        try:
            value = self._value(node, scope)
        except Unknown as unknown:
            self._steps += scope.forget(node, unknown) if forget else 0
            return unknown
        return Unknown(node) if isinstance(value, (ForeignName, Function, Method)) else value

    def _name(self, node: ast.Name, scope: Scope) -> object:
        value = scope.find(node.id)
        if isinstance(value, Unknown):
            raise value
        if node.id in self._changed_by_functions and value is self._names.get(node.id):
            raise Unknown(node)
        return value

    def _elements(self, nodes: Sequence[ast.expr], scope: Scope) -> Iterator[object]:
        for node in nodes:
            if isinstance(node, ast.Starred):
                yield from self._items(self._value(node.value, scope), node)
            else:
                yield self._or_unknown(node, scope)

    def _items(self, value: object, node: ast.AST) -> list[object]:
        items = [value] if isinstance(value, FileLines) else value
        if not isinstance(items, list):
            raise Unknown(node)
        self._spend(node, len(items))
        return items

    def _sum(self, left: object, right: object, node: ast.AST) -> object:
        if isinstance(left, str) and isinstance(right, str) and len(left) + len(right) < _LONGEST:
            return left + right
        return [*self._items(left, node), *self._items(right, node)]

    def _path(self, parts: Sequence[object], node: ast.expr) -> object:
        """Return a path. A path from a file's line represents that file, which is read with those it names."""
        for part in parts:
            if isinstance(part, FileLines):
                return part
        texts = [part for part in parts if isinstance(part, str) and len(part) < _LONGEST]
        if not texts or len(texts) < len(parts):
            raise Unknown(node)
        return posixpath.normpath(posixpath.join(*texts))

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp, scope: Scope) -> Iterator[object]:
        (one,) = node.generators
        inner = Scope(scope)
        for item in self._items(self._value(one.iter, scope), one.iter):
            inner.assign(one.target, item)
            tests = [self._test(test, inner) for test in one.ifs]
            if all(tests):
                value = self._or_unknown(node.elt, inner)
                decided = isinstance(value, FileLines) or not any(isinstance(one, FileLines) for one in tests)
                yield value if decided else Unknown(node)

    def _test(self, node: ast.expr, scope: Scope) -> object:
        """Return a value whose truth does not depend on unknown values."""
        value = self._value(node, scope)
        known = value is None or isinstance(value, (str, bool, FileLines))
        if not known and not (isinstance(value, list) and all(isinstance(one, str) for one in value)):
            raise Unknown(node)
        return value

    def _condition(self, node: ast.expr, parts: Sequence[ast.expr], scope: Scope) -> object:
        """Return whether a condition holds; for a condition on a file's lines, return the lines."""
        values = [self._test(part, scope) for part in parts]
        for value in values:
            if isinstance(value, FileLines):
                return value
        if isinstance(node, ast.BoolOp):
            return all(values) if isinstance(node.op, ast.And) else any(values)
        if isinstance(node, ast.UnaryOp):
            return not values[0]
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
            return (values[0] == values[1]) is isinstance(node.ops[0], ast.Eq)
        raise Unknown(node)

    def _item(self, node: ast.Subscript, scope: Scope) -> object:
        holder = self._value(node.value, scope)
        if isinstance(holder, FileLines):
            return holder
        key = self._value(node.slice, scope)
        if not isinstance(holder, dict) or not isinstance(key, str) or key not in holder:
            raise Unknown(node)
        if isinstance(holder[key], Unknown):
            raise holder[key]
        return holder[key]

    # Calls

    def _call(self, node: ast.Call, scope: Scope) -> object:
        function = self._value(node.func, scope)
        arguments = list(self._elements(node.args, scope))
        keywords = {one.arg or "**": self._or_unknown(one.value, scope) for one in node.keywords}
        for value in arguments:
            if isinstance(value, Unknown):
                raise value
        if isinstance(function, Function):
            return self._own(function, arguments, keywords, node)
        if isinstance(function, Method):
            return self._method(function, arguments, node)
        name = function.name if isinstance(function, ForeignName) else ""
        if name == "dict" and not arguments and "**" not in keywords:
            return keywords
        if name in ("os.getenv", "os.environ.get") and len(arguments) == 2:
            return arguments[1]
        if name in ("os.path.join", "pathlib.Path") or (name in (*_OPENS, *_SAME) and arguments):
            path = self._path(arguments[:1] if name in _OPENS else arguments, node)
            return FileLines(path) if name in _OPENS and isinstance(path, str) else path
        if name == "os.path.dirname" and len(arguments) == 1 and isinstance(arguments[0], str):
            return posixpath.dirname(arguments[0])
        if name in ("list", "tuple") and len(arguments) == 1:
            return list(self._items(arguments[0], node))
        raise Unknown(node)

    def _own(
        self, function: Function, arguments: list[object], keywords: dict[str, object], node: ast.Call
    ) -> object:
        """Return the result of calling a function that the script defines."""
        if function.node in self._running and any(isinstance(one, FileLines) for one in arguments):
            return []  # of a file that a line of this one names, which is read with it
        signature = function.node.args
        names = [one.arg for one in (*signature.posonlyargs, *signature.args)]
        inner = Scope(function.scope)
        for name, default in zip(reversed(names), reversed(signature.defaults), strict=False):
            inner[name] = self._or_unknown(default, function.scope)
        inner |= dict(zip(names, arguments, strict=False)) | keywords
        if signature.vararg is not None:
            inner[signature.vararg.arg] = arguments[len(names) :]
            names.append(signature.vararg.arg)
        elif len(arguments) > len(names):
            raise Unknown(node)
        if set(inner) != set(names) or function.node in self._running or function.is_odd():
            raise Unknown(node)
        self._running.append(function.node)
        try:
            self._run(function.node.body, inner)
        except _Return as returned:
            return returned.value
        finally:
            self._running.pop()
        return None

    def _method(self, method: Method, arguments: list[object], node: ast.Call) -> object:
        value, name = method.of, method.name
        if isinstance(value, FileLines):
            whole = name == "split" and arguments in ([], ["\n"], ["#"], [" #"])  # leaves a requirement whole
            if whole or name in _OF_LINES:
                return value
        elif isinstance(value, str):
            if name in ("open", "read_text"):
                return FileLines(str(self._path([value], node)))
            if name in _OF_PATHS:
                return self._path([value, *arguments], node)
            self._spend(node, len(value) // 10)
            if name in _OF_TEXTS and all(isinstance(one, str) and one for one in arguments):
                result: object = getattr(value, name)(*arguments[:1])
                return result
        raise Unknown(node)

    def _spend(self, node: ast.AST, steps: int = 1) -> None:
        self._steps += steps
        if self._steps > _MOST_STEPS:
            raise Unknown(node)
