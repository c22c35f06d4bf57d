"""Python before and after a patch: whether it compiles, and names that nothing defines any more, by pyflakes."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping

from npu_rl.common.bounded import parse_python
from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.stack.lint.lint_report import LintFinding
from npu_rl.stack.lint.series_state import AppliedFile
from npu_rl.stack.lint.white_space import lines_of

_SUFFIXES = (".py", ".pyi")
_NOT_PYTHON = "it is not Python"  # as parse_python begins


class _NotCompiled(Exception):
    """Python that does not compile here, or that is too large to try; `is_fault` for the former."""

    def __init__(self, why: str, *, is_fault: bool) -> None:
        super().__init__(why)
        self.is_fault = is_fault


def python_findings(patch: str, change: AppliedFile) -> Iterator[LintFinding]:
    """Yield what a patch breaks in a Python file. What was broken before it is only noted."""
    file = change.file
    if not file.path.endswith(_SUFFIXES) or change.after is None:
        return
    try:
        after = _undefined_names(change.after, file.path)
    except _NotCompiled as error:
        yield _broken(patch, change, error)
        return
    if not after:  # the usual case takes half the time
        return
    try:
        before = {} if change.before is None else _undefined_names(change.before, file.path)
    except _NotCompiled as error:
        message = f"names in {file.path} were not checked: before the patch {error}"
        yield LintFinding("python", Severity.NOTE, patch, file.line, message)
        return
    added = _added_lines(change)
    for name in sorted(after.keys() - before.keys(), key=lambda name: after[name][0]):
        lines = after[name]
        line = next((n for n in lines if n in added), None)
        if line is not None:
            message = f"nothing in {file.path} defines or imports {name}, which line {line} uses"
            yield LintFinding("names", Severity.ERROR, patch, added[line], message)
        else:
            message = f"{file.path} still uses {name} in line {lines[0]}, and nothing defines or imports it any more"
            yield LintFinding("names", Severity.ERROR, patch, file.line, message)


def _broken(patch: str, change: AppliedFile, error: _NotCompiled) -> LintFinding:
    """Return that a file does not compile: an error, unless it did not before, or is too large to try."""
    file = change.file
    severity = Severity.ERROR if error.is_fault else Severity.NOTE
    message = f"{file.path} does not compile after the patch: {error}"
    try:
        if change.before is not None:
            _compiled(change.before, file.path)
    except _NotCompiled as before:
        severity, message = Severity.NOTE, f"{file.path} was not checked: before the patch {before}"
    return LintFinding("python", severity, patch, file.line, message)


def _compiled(content: bytes, path: str) -> ast.Module:
    """Return the syntax tree of Python that compiles. Raises _NotCompiled."""
    try:
        tree = parse_python(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about other people's text
            compile(tree, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise _NotCompiled(f"{error.msg} (line {error.lineno})", is_fault=True) from None
    except (RecursionError, MemoryError):
        raise _NotCompiled("it is nested too deeply", is_fault=False) from None
    except ValueError as error:
        raise _NotCompiled(str(error), is_fault=str(error).startswith(_NOT_PYTHON)) from None
    return tree


def _undefined_names(content: bytes, path: str) -> Mapping[str, list[int]]:
    """Return the lines that use each undefined name. Raises _NotCompiled."""
    from pyflakes import checker, messages

    tree = _compiled(content, path)
    try:
        found = checker.Checker(tree, filename=path).messages
    except RecursionError:
        raise _NotCompiled("it is nested too deeply", is_fault=False) from None
    finally:
        _forget_parents(tree)
    names: dict[str, list[int]] = {}
    for message in found:
        if isinstance(message, messages.UndefinedName):
            names.setdefault(str(message.message_args[0]), []).append(message.lineno)
    return {name: sorted(lines) for name, lines in names.items()}


def _forget_parents(tree: ast.AST) -> None:
    """Remove what pyflakes up to 4.0 keeps in nodes: an operator is one node in all trees, and led into this one."""
    for node in ast.walk(tree):
        for name in [name for name in vars(node) if name.startswith("_pyflakes")]:
            delattr(node, name)


def _added_lines(change: AppliedFile) -> dict[int, int]:
    """Return the lines that a patch adds, by their numbers after it, with their lines in the patch."""
    added = {}
    for hunk in change.file.hunks:
        number = hunk.new_index + change.offsets.get(hunk.number, 0)
        for at, line in lines_of(hunk):
            number += line.tag != "-"
            if line.tag == "+":
                added[number] = at
    return added
