"""The table `[project]` of a pyproject.toml (PEP 621)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from npu_rl.common.bounded import parse_toml
from npu_rl.stack.requirements.reading import Reading, bounds_of, joined, python_bound


def read_project_table(text: str, extras: Collection[str]) -> dict[str, Reading]:
    """Return the requirements of a pyproject.toml by extra; "" has those without an extra.

    `[build-system]` is not needed at run time. Dependencies that setuptools takes from a file are includes.
    """
    try:
        data = parse_toml(text)
    except ValueError as error:
        return {"": Reading(unread=(f"not TOML: {error}",))}
    project = _table(data, "project")
    python, poetry = project.get("requires-python", ""), _table(data, "tool", "poetry", "dependencies")
    found = {
        "": joined(
            python_bound(python, "requires-python")
            if isinstance(python, str)
            else _unread("requires-python"),
            _listed(project.get("dependencies", []), "dependencies"),
            _dynamic(data, project),
            _unread("tool.poetry.dependencies") if poetry else Reading(),
        )
    }
    optional = _table(project, "optional-dependencies")
    return found | {extra: _listed(optional.get(extra), f"optional-dependencies.{extra}") for extra in extras}


def _dynamic(data: dict[str, Any], project: dict[str, Any]) -> Reading:
    """Return the reading of dependencies that are left to the build backend.

    setuptools takes them from a named file, or else from setup.py or setup.cfg, which are read separately.
    """
    names = project.get("dynamic", [])
    if not isinstance(names, list) or "dependencies" not in names:
        return Reading()
    files = _table(data, "tool", "setuptools", "dynamic", "dependencies").get("file", [])
    files = [files] if isinstance(files, str) else files
    if isinstance(files, list) and files:
        return Reading(includes=tuple(file for file in files if isinstance(file, str)))
    backend = str(_table(data, "build-system").get("build-backend", "setuptools.build_meta"))
    return Reading() if backend.startswith("setuptools") else _unread(f"dependencies, which {backend} finds")


def _table(data: dict[str, Any], *keys: str) -> dict[str, Any]:
    for key in keys:
        value = data.get(key)
        data = value if isinstance(value, dict) else {}
    return data


def _listed(value: object, place: str) -> Reading:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        return _unread(place)
    return bounds_of(value, place)


def _unread(place: str) -> Reading:
    return Reading(unread=(f"{place[:80]} can't be read",))
