"""The line numbers of declared bounds, kept beside the lock, which names only the files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

from npu_rl.common.bounded import read_json
from npu_rl.common.errors import LockError
from npu_rl.stack.requirements.reading import PYTHON

if TYPE_CHECKING:
    from npu_rl.stack.lock.lock_model import Lock

_LARGEST = 1 << 20  # bytes; a manifest's has some 10 kB
_PYTHON_KEYS = re.compile(r"python_requires|requires-python")

Lines = Mapping[str, Mapping[str, Mapping[str, int]]]
"""Component -> file -> bound as it is written -> line, from 1."""


def lines_path(manifest: Path) -> Path:
    """Return the path of the file beside a manifest."""
    return manifest.with_name(f"{manifest.stem}.bounds.json")


def read_lines(manifest: Path, lock: Lock) -> Lines:
    """Return the lines of the components whose pins match the lock's; empty without a file beside the manifest.

    Raises:
        LockError: If the file can't be read.
    """
    path = lines_path(manifest)
    try:
        found = read_json(path, _LARGEST)
        pins, lines = found["pins"], found["lines"]
        return {
            name: {file: dict(of_file) for file, of_file in lines[name].items()}
            for name, component in lock.components.items()
            if name in lines and pins.get(name) == component.shown_pin()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LockError(
            "The lines of declared bounds can't be read",
            where=str(path),
            why=str(error),
            hint="Remove the file: bounds are then shown without their lines.",
        ) from error


def dump_lines(pins: Mapping[str, str], lines: Lines) -> str:
    """Return the text of the file."""
    found: dict[str, Any] = {"pins": dict(pins), "lines": {name: dict(one) for name, one in lines.items()}}
    return json.dumps(found, indent=1, sort_keys=True) + "\n"


def line_of(bound: str, content: str) -> int | None:
    """Return the line, from 1, that declares a bound in a file; None if no line matches."""
    requirement = Requirement(bound)
    if requirement.name == PYTHON:
        return _first(_PYTHON_KEYS, content)
    exact = r"\s*".join(re.escape(word) for word in re.findall(r"[\w.]+|\S", bound))
    package = re.escape(requirement.name).replace("_", "[-_.]").replace(r"\-", "[-_.]")
    versions = [re.escape(one.version) for one in requirement.specifier]
    loose = rf"(?i)(?<![\w.-]){package}(?![\w.-])(?=.*(?<![\w.]){versions[0]}(?![\w.]))" if versions else ""
    return _first(re.compile(rf"(?<![\w.-]){exact}"), content) or (
        _first(re.compile(loose), content) if loose else None
    )


def _first(pattern: re.Pattern[str], content: str) -> int | None:
    lines = enumerate(content.splitlines(), 1)
    return next((number for number, line in lines if pattern.search(line.partition("#")[0])), None)
