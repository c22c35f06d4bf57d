"""Errors as plain data: the root exception, and the place in the tree that raised it."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

_TEXT_LIMIT = 300
_LACKS = re.compile(r"cannot import name '(\w+)' from ")


class CatchAll:
    """A context manager that stores an exception of its body, including SystemExit and KeyboardInterrupt."""

    problem: BaseException | None = None

    def __enter__(self) -> CatchAll:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.problem = problem
        return True


def describe_error(problem: BaseException, code: Path) -> dict[str, Any]:
    """Return the cause of `problem` as JSON types: type, text, missing module, and place in `code`."""
    root = first_choice(root_cause(problem), code)
    kind = type(root).__name__
    found: dict[str, Any] = {"type": kind, "text": first_line(root, code), "where": location(root, code)}
    if isinstance(root, ModuleNotFoundError) and root.name:
        found |= {"missing": root.name, "in_tree": in_tree(root.name, code)}
    elif name := missing_name(root, code) or package_of_file(root, code, found["where"]):
        found |= {"missing": name, "in_tree": False}
    if isinstance(root, NotImplementedError):
        found["unsupported"] = True  # by a stand-in or this rehearsal, so it is no fault of the tree
    return found


def missing_name(problem: BaseException, code: Path) -> str | None:
    """Return the dotted name missing from an installed package's version or a stand-in; None for the tree's names."""
    if not isinstance(problem, ImportError) or not problem.name:
        return None
    found = _LACKS.match(str(problem))
    return (
        f"{problem.name}.{found[1]}"
        if found and not (code / problem.name.partition(".")[0]).is_dir()
        else None
    )


def package_of_file(problem: BaseException, code: Path, where: str | None) -> str | None:
    """Return a missing package that the failing file imports, if the error is one of going on without it.

    These are a name that the import would have bound, an attribute or a call of None, and a ValueError with the
    package's name. Megatron-core 0.14 decorates with triton.jit where triton is None
    (fused_indices_converter.py:21@6a6cd47); verl raises ValueError where vLLM has no version
    (third_party/vllm/__init__.py@v0.5.0).
    """
    text = str(problem).lower()
    of_none = isinstance(problem, AttributeError | TypeError) and "'nonetype'" in text
    if where is None or not (of_none or isinstance(problem, NameError | ValueError)):
        return None
    for node in ast.walk(ast.parse((code / where.rpartition(":")[0]).read_bytes())):
        if isinstance(node, ast.Import):
            names = [one.name.partition(".")[0] for one in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [node.module.partition(".")[0]]
        else:
            continue
        bound = {one.asname or one.name.partition(".")[0] for one in node.names}
        if isinstance(problem, NameError) and problem.name not in bound:
            continue
        for name in names:
            if isinstance(problem, ValueError) and name.lower() not in text:
                continue
            if name not in sys.modules and importlib.util.find_spec(name) is None:
                return name
    return None


def root_cause(problem: BaseException) -> BaseException:
    """Return the cause (`from`) of an exception, or the ImportError that it wraps."""
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


def first_choice(problem: BaseException, code: Path) -> BaseException:
    """Return the failure of the import that was tried first, if the tree's other releases have the second choice.

    verl imports from vllm.lora.models, which vLLM 0.18 does not have any more, where vllm.lora.lora_model fails because
    a package is missing (verl/utils/vllm/utils.py@0.8).
    """
    before = problem.__context__
    lacks = isinstance(problem, ModuleNotFoundError) and problem.name and in_tree(problem.name, code)
    return root_cause(before) if lacks and isinstance(before, ImportError) else problem


def in_tree(name: str, code: Path) -> bool:
    """Return whether a missing module belongs to the tree: the innermost package around it that exists is there.

    A folder without `__init__.py`, as megatron, may have parts elsewhere (megatron.bridge).
    """
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        place = code.joinpath(*parts[:count])
        if place.is_dir():
            return (place / "__init__.py").is_file()
        if place.with_suffix(".py").is_file():
            return True
    return False


def first_line(problem: BaseException, code: Path) -> str:
    """Return the exception's first line without local paths, so that it is the same on all machines."""
    text = " ".join((str(problem).strip().splitlines() or [""])[0].split())
    if isinstance(problem, ImportError):
        text = text.split(" (/")[0].split(" (unknown location)")[0]
    for folder, name in ((f"{code}/", ""), (f"{Path.cwd()}/", ""), (sys.prefix, "<python>")):
        text = text.replace(folder, name)
    return text[:_TEXT_LIMIT]


def location(problem: BaseException, code: Path) -> str | None:
    """Return "file:line", relative to `code`, of the innermost frame in the tree."""
    for frame in reversed(traceback.extract_tb(problem.__traceback__)):
        if Path(frame.filename).is_relative_to(code):
            return f"{Path(frame.filename).relative_to(code)}:{frame.lineno}"
    return None
