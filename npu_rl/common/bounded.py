"""Bounded reading of untrusted files, JSON, TOML and YAML.

A FIFO or device is an error, not waited for. Every kind of damage raises OSError or ValueError: json itself raises
RecursionError for deep nesting.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable, Iterator
    from io import BufferedReader

LARGEST = 64 * 1024 * 1024  # bytes; the receipt of 5,000 files has 0.7 MB

PACK_SEAL = 20  # bytes of the SHA-1 at the end of a pack
LARGEST_PYTHON = 1 << 19  # bytes; the largest file of the bundled trees has 0.33 MB
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


def pack_seal(path: Path) -> str | None:
    """Return the SHA-1 at the end of a pack or index of git's; None if its content has another. Raises OSError."""
    import hashlib

    digest = hashlib.sha1(usedforsecurity=False)
    with open_file(path) as file:
        left = os.fstat(file.fileno()).st_size - PACK_SEAL
        while left > 0 and (data := file.read(min(1 << 20, left))):
            digest.update(data)
            left -= len(data)
        seal = file.read(PACK_SEAL + 1)
    return seal.hex() if seal == digest.digest() else None


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
    with _within_bounds():
        return json.loads(text)


def parse_python(content: bytes) -> ast.Module:
    """Return the syntax tree of Python source, without warnings. Raises ValueError for any other bytes."""
    import ast
    import warnings

    if len(content) > LARGEST_PYTHON:
        raise ValueError(f"it is larger than {LARGEST_PYTHON} bytes")
    try:
        with warnings.catch_warnings(), _within_bounds():
            warnings.simplefilter("ignore")  # about other people's text, such as invalid escapes
            return ast.parse(content)
    except SyntaxError as error:
        raise ValueError("it is not Python" + (f" (line {error.lineno})" if error.lineno else "")) from None
    except ValueError as error:
        # Python before 3.12 has this for a NUL, without a line
        raise ValueError("it is not Python" if "null bytes" in str(error) else str(error)) from None


def syntax_tree(content: bytes) -> ast.Module | None:
    """Return a Python file's syntax tree; None if the file is invalid or exceeds a bound."""
    try:
        return parse_python(content)
    except ValueError:
        return None


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML text. Raises ValueError for any invalid text."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    with _within_bounds():
        table: dict[str, Any] = tomllib.loads(text)
    return table


YAML_DEPTH = 32  # levels
YAML_VALUES = 20_000  # once aliases are expanded


class UnboundedYaml(ValueError):
    """YAML that is nested too deeply; with its line, from 1."""

    def __init__(self, line: int) -> None:
        super().__init__(f"it is nested deeper than {YAML_DEPTH} levels")
        self.line = line


def require_bounded_yaml(text: str | bytes, loader: Any) -> None:
    """Raise UnboundedYaml for text that is nested so deeply that libyaml would exhaust the stack.

    Only its events are read. Raises yaml.YAMLError for text that is not YAML.
    """
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > YAML_DEPTH:
            raise UnboundedYaml(event.start_mark.line + 1 if event.start_mark else 1)


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
