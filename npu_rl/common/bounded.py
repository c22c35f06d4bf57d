"""Bounded reading of untrusted files, JSON, TOML and YAML.

A FIFO or device is an error, not waited for. Every kind of damage raises OSError or ValueError: json itself raises
RecursionError for deep nesting, and MemoryError for a million empty lists.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import re
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable, Iterator
    from io import BufferedReader

LARGEST = 64 * 1024 * 1024  # bytes; the receipt of 5,000 files has 0.7 MB

# Python source: bytes, `python_cost` and levels. The largest of the bundled trees have 0.33 MB, 41,214 and 48. 1 MiB of
# `a;` takes 0.9 GB; of one chain of 200,000 `.a` Python 3.10 dies; for 200 levels ast.unparse needs 1,000 of the stack.
LARGEST_PYTHON = 1 << 19
PYTHON_COST, PYTHON_DEPTH = 80_000, 100
_PYTHON_SIGNS = b".([{+-*/%&|^@<>,;:=\n"
# To find 5,000 fields in half a MiB of one f-string took Python 3.11 as long as 500,000 signs.
_BYTES_OF_A_BRACE = 5000
JSON_VALUES = 5_000_000  # signs that begin one, in texts, too; the index of DeepSeek-V3 has some 184,000
# Errors which only mean that there is no regular file of that name.
NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ELOOP, errno.ENXIO)


def open_file(path: Path) -> BufferedReader:
    """Open a regular file for reading. Raises OSError, with an errno in NO_FILE if it is not a regular file."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    kind = os.fstat(handle).st_mode
    if stat.S_ISREG(kind):
        return os.fdopen(handle, "rb")
    os.close(handle)
    number = errno.EISDIR if stat.S_ISDIR(kind) else errno.ENXIO
    raise OSError(number, "Not a regular file", str(path))


def read_file(path: Path, most: int = LARGEST) -> bytes:
    """Return the bytes of a regular file. Raises OSError; ValueError for more than `most` bytes."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(size + 1) if size <= most else b""  # a read allocates all it requests
    if max(size, len(data)) > most:
        raise ValueError(f"it is larger than {most} bytes")
    return data


def read_if_file(path: Path, most: int = LARGEST) -> bytes | None:
    """Return the bytes of a regular file; None if it is missing or larger than `most` bytes. Raises OSError."""
    try:
        return read_file(path, most)
    except ValueError:
        return None
    except OSError as error:
        if error.errno in NO_FILE:
            return None
        raise


def chunks(file: BufferedReader, largest: int = 1 << 20) -> Iterator[memoryview]:
    """Yield the rest of an open file in chunks, which share one buffer.

    Raises OSError beyond the file's size at the start: /proc/self/pagemap has size 0 and endless content.
    """
    left = os.fstat(file.fileno()).st_size - file.tell()
    buffer = memoryview(bytearray(min(largest, max(left, 0) + 1)))
    while count := file.readinto(buffer):
        left -= count
        if left < 0:
            raise OSError(errno.EOVERFLOW, "It has more bytes than its size states", str(file.name))
        yield buffer[:count]


def hash_file(path: Path, digest: Any = None, progress: Callable[[int], object] | None = None) -> str:
    """Return the hash of a file in hexadecimal. Raises OSError.

    Args:
        digest: A digest of hashlib; None for SHA-256.
        progress: Called with the number of bytes, as they are read.
    """
    import hashlib

    digest = digest or hashlib.sha256()
    with open_file(path) as file:
        for data in chunks(file, 1 << 22):
            digest.update(data)
            if progress is not None:
                progress(len(data))
    return str(digest.hexdigest())


@contextlib.contextmanager
def _within_bounds() -> Iterator[None]:
    """Turn a parser's errors for deep nesting or too little memory into ValueError."""
    try:
        yield
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except MemoryError:
        raise ValueError("it does not fit into this machine's memory") from None


def read_json(path: Path, most: int = LARGEST) -> Any:
    """Parse a JSON file. Raises OSError, ValueError."""
    return parse_json(read_file(path, most))


def parse_json(text: str | bytes) -> Any:
    """Parse JSON text. Raises ValueError for any invalid text."""
    _require_bounded_json(text)
    collecting = gc.isenabled()
    gc.disable()  # ten million lists took 11 seconds to be counted again and again, and 2 without
    try:
        with _within_bounds():
            return json.loads(text)
    finally:
        if collecting:
            gc.enable()


def _require_bounded_json(text: str | bytes) -> None:
    """Raise ValueError for more values than fit into a gigabyte: 64 MiB of `{},` took 1.7 GB."""
    signs: tuple[Any, ...] = ("[", "{", ",", ":") if isinstance(text, str) else (b"[", b"{", b",", b":")
    if sum(map(text.count, signs)) > JSON_VALUES:
        raise ValueError(f"it contains more than {JSON_VALUES:,} values")


def parse_python(content: bytes) -> ast.Module:
    """Return the syntax tree of Python source, without warnings. Raises ValueError for any other bytes."""
    import ast
    import warnings

    if len(content) > LARGEST_PYTHON:
        raise ValueError(f"it is larger than {LARGEST_PYTHON} bytes")
    if python_cost(content) > PYTHON_COST:
        raise ValueError("it has too many statements, operators or brackets")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about other people's text, such as invalid escapes
            tree = ast.parse(content)
    except SyntaxError as error:
        raise ValueError("it is not Python" + (f" (line {error.lineno})" if error.lineno else "")) from None
    except ValueError:  # a NUL, before Python 3.12
        raise ValueError("it is not Python") from None
    except (RecursionError, MemoryError):  # both mean nesting
        raise ValueError("it is nested too deeply") from None
    _require_shallow(tree)
    return tree


def syntax_tree(content: bytes) -> ast.Module | None:
    """Return a Python file's syntax tree; None if the file is invalid or exceeds a bound."""
    try:
        return parse_python(content)
    except ValueError:
        return None


def python_cost(content: bytes) -> int:
    """Return the cost of parsing, about one for each token: 100,000 take a second and 0.2 GB at most."""
    signs = len(content) - len(content.translate(None, _PYTHON_SIGNS))
    return signs + content.count(b"{") * len(content) // _BYTES_OF_A_BRACE


def _require_shallow(tree: ast.AST) -> None:
    """Raise ValueError for a tree so deep that recursive functions might exhaust the stack."""
    import ast

    leaves = (ast.Name, ast.Constant, ast.Load, ast.Store)
    level = [tree]
    for _ in range(PYTHON_DEPTH):
        below = []
        for node in level:
            for value in node.__dict__.values():  # of iter_child_nodes this takes half the time
                values = value if value.__class__ is list else (value,)
                below += [one for one in values if one.__class__ not in leaves and isinstance(one, ast.AST)]
        level = below
    if level:
        raise ValueError("it is nested too deeply")


# Of a dotted TOML key: tomllib makes a copy of all parts for each, which took 1.5 GB for 20,000.
_MOST_PARTS = 33
_TOML_TEXT = re.compile(r"""\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'""")


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML text. Raises ValueError for any invalid text."""
    names = re.sub(r"[ \t]+", " ", _TOML_TEXT.sub("x", text)).replace(" .", ".").replace(". ", ".")
    if any(word.count(".") >= _MOST_PARTS for word in re.split(r"[^\w.-]+|\.{2,}", names)):
        raise ValueError(f"a key has more than {_MOST_PARTS} parts")
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    with _within_bounds():
        table: dict[str, Any] = tomllib.loads(text)
    return table


YAML_DEPTH = 32  # levels
YAML_VALUES = 20_000  # once aliases are expanded
_NUMBER = re.compile(r"[-+.]*[0-9][0-9_:.eExXa-fA-F+-]*")
_LONGEST_NUMBER = 1000  # characters; in base 60, which YAML 1.1 has, the time grows with their square


class UnboundedYaml(ValueError):
    """YAML that is nested too deeply, too large, or has a number that is too long; with its line, from 1."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line = line


def require_bounded_yaml(text: str | bytes, loader: Any) -> None:
    """Raise UnboundedYaml for text that would cost a composer too much memory, time or stack.

    Only its events are read, which takes none of these. Raises yaml.YAMLError for text that is not YAML.
    """
    import yaml

    anchors: dict[str | None, tuple[int, int]] = {}  # to the values and levels of what it names
    opened: list[tuple[str | None, int]] = []  # anchor of each collection, and the values before it
    levels = [0]  # below each of them, so far
    count = 0
    for event in _yaml_events(yaml, text, loader):
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, count))
            levels.append(0)
            count, height = count + 1, 0
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            height = levels.pop() + 1
            anchors[anchor] = count - before, height
        elif isinstance(event, yaml.ScalarEvent):
            count, height = count + 1, 1
            anchors[event.anchor] = 1, 1
        elif isinstance(event, yaml.AliasEvent):
            size, height = anchors.get(event.anchor, (1, 1))
            count += size
        else:
            continue
        levels[-1] = max(levels[-1], height)
        fault = (
            f"it is nested deeper than {YAML_DEPTH} levels"
            if len(opened) + height > YAML_DEPTH
            else f"it contains more than {YAML_VALUES} values once aliases are expanded"
            if count > YAML_VALUES
            else _fault_alone(yaml, event, opened)
        )
        if fault:
            raise UnboundedYaml(event.start_mark.line + 1 if event.start_mark else 1, fault)


def _yaml_events(yaml: Any, text: str | bytes, loader: Any) -> Iterator[Any]:
    """Yield the events. The libyaml in PyYAML 6.0.4 scans ahead, and stops by itself at 1,000 levels."""
    try:
        yield from yaml.parse(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        if error.problem != "exceeded maximum nesting depth":
            raise
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UnboundedYaml(line, f"it is nested deeper than {YAML_DEPTH} levels") from None


def _fault_alone(yaml: Any, event: Any, opened: list[tuple[str | None, int]]) -> str:
    if isinstance(event, yaml.AliasEvent) and any(anchor == event.anchor for anchor, _ in opened):
        return f"the alias *{event.anchor} refers to a value that contains it"
    long = isinstance(event, yaml.ScalarEvent) and len(event.value) > _LONGEST_NUMBER
    if long and (event.tag or (not event.style and _NUMBER.fullmatch(event.value))):
        return f"a number has more than {_LONGEST_NUMBER} characters"
    return ""


def parse_yaml(text: str | bytes) -> Any:
    """Parse one YAML document. Raises ValueError for any invalid text."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        require_bounded_yaml(text, loader)
        return yaml.load(text, Loader=loader)  # noqa: S506  both are safe
    except yaml.MarkedYAMLError as error:  # its text quotes the line, which may contain a token
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ValueError(f"{error.problem}{line}") from None
    except yaml.YAMLError:
        raise ValueError("it contains characters that are not text") from None
    except UnboundedYaml as error:
        raise ValueError(f"{error} (line {error.line})") from None
    except (TypeError, KeyError, AttributeError, IndexError, OverflowError):
        raise ValueError("it has a value that its tag does not allow") from None
