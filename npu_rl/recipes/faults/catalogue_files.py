"""The catalogue's hand-written YAML files, and catalogue.json, which `.ci/regenerate` generates from them.

Commands read the JSON: `setup` imports no yaml where there is nothing to do, and YAML takes ten times as long to parse.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import read_file
from npu_rl.common.errors import NpuRlError
from npu_rl.recipes.faults.fault import KnownFault, parse_fault

CATALOGUE = Path(__file__).resolve().parent / "catalogue"


def read_catalogue() -> tuple[KnownFault, ...]:
    """Return the faults of the YAML files, sorted by id. Raises NpuRlError for an invalid file."""
    return tuple(read_fault(path) for path in _files())


def read_fault(path: Path) -> KnownFault:
    """Read one file of the catalogue. Raises NpuRlError if it is invalid."""
    return _read(path)[0]


def catalogue_json() -> str:
    """Return the text of catalogue.json, one fault per line. Raises NpuRlError for an invalid file."""
    rows = [f"{json.dumps(path.stem)}: {json.dumps(_read(path)[1])}" for path in _files()]
    return "{\n" + ",\n".join(rows) + "\n}\n"


def _files() -> list[Path]:
    return sorted(CATALOGUE.glob("*.yaml"), key=lambda path: path.stem)


def _read(path: Path) -> tuple[KnownFault, Any]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where libyaml is there
    try:
        data = yaml.load(read_file(path), Loader=loader)  # noqa: S506  both are safe
        return parse_fault(path.stem, data), data
    except (yaml.YAMLError, ValueError) as error:
        raise NpuRlError("Invalid fault file", where=str(path), why=str(error)) from error
