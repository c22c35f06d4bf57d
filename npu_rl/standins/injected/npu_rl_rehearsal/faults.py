"""What went wrong, as plain data: which exception is to blame, and where in the tree it was raised."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

_LONGEST = 300


class Caught:
    """A `with` block that keeps whatever its body raises, SystemExit and KeyboardInterrupt included."""

    problem: BaseException | None = None

    def __enter__(self) -> Caught:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.problem = problem
        return True


def describe(problem: BaseException, code: Path) -> dict[str, Any]:
    """The exception to blame for `problem`: type, text, missing name if it is one, place in `code` if it is there."""
    root = root_cause(problem)
    kind = type(root).__name__
    found: dict[str, Any] = {"type": kind, "text": first_line(root, code), "where": place(root, code)}
    if isinstance(root, ModuleNotFoundError) and root.name:
        found |= {"missing": root.name, "in_tree": in_tree(root.name, code)}
    if isinstance(root, NotImplementedError):
        found["unsupported"] = (
            True  # a stand-in, or this rehearsal, has no way to do it: says nothing of the tree
        )
    if isinstance(root, SystemExit):
        found["status"] = root.code if isinstance(root.code, int) else 0 if root.code is None else 1
    return found


def root_cause(problem: BaseException) -> BaseException:
    """What another exception was raised from, if its author says so (`from`) or it only wraps an import."""
    seen = {id(problem)}
    while True:
        inner = problem.__cause__
        if inner is None and not problem.__suppress_context__ and not isinstance(problem, ImportError):
            context = problem.__context__
            inner = context if isinstance(context, ImportError) else None
        if inner is None or id(inner) in seen:
            return problem
        seen.add(id(inner))
        problem = inner


def in_tree(name: str, code: Path) -> bool:
    """Whether a missing module would lie inside the tree: the package it begins with is there."""
    top, _, rest = name.partition(".")
    return bool(rest) and ((code / top).is_dir() or (code / f"{top}.py").is_file())


def first_line(problem: BaseException, code: Path) -> str:
    """The exception's first line without paths of this machine, so that it is the same everywhere."""
    text = " ".join((str(problem).strip().splitlines() or [""])[0].split())
    if isinstance(problem, ImportError):
        text = text.split(" (/")[0].split(" (unknown location)")[0]
    for folder, name in ((f"{code}/", ""), (f"{Path.cwd()}/", ""), (sys.prefix, "<python>")):
        text = text.replace(folder, name)
    return text[:_LONGEST]


def place(problem: BaseException, code: Path) -> str | None:
    """`file:line`, relative to `code`, of the innermost frame that lies there."""
    for frame in reversed(traceback.extract_tb(problem.__traceback__)):
        if Path(frame.filename).is_relative_to(code):
            return f"{Path(frame.filename).relative_to(code)}:{frame.lineno}"
    return None
