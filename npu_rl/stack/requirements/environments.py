"""The environments for judging a marker such as `python_version < "3.11"`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from packaging.markers import Marker
from packaging.specifiers import InvalidSpecifier, SpecifierSet

PYTHONS = tuple(f"3.{minor}" for minor in range(8, 15))
MACHINES = ("aarch64", "x86_64")
_PATCHES = range(30)

Environment = Mapping[str, str]


@lru_cache(maxsize=32)
def environments(python: str | None) -> tuple[Environment, ...]:
    """Return the environments of a stack: CPython on Linux, of the versions that its host may have, on both machines.

    Args:
        python: The host's Python, as a range or a version; None, or a text that is neither, for any.
    """
    allowed = python_range(python) or SpecifierSet()
    newest = {}
    for version in PYTHONS:
        patches = (f"{version}.{patch}" for patch in reversed(_PATCHES))
        newest[version] = next(filter(allowed.contains, patches), None)
    if not any(newest.values()):
        newest = {version: f"{version}.0" for version in PYTHONS}
    return tuple(
        _environment(version, full, machine)
        for version, full in newest.items()
        if full
        for machine in MACHINES
    )


def python_range(text: str | None) -> SpecifierSet | None:
    """Return a host's Python as a range: 3.11 is each 3.11.x. None for a text that is neither a version nor a range."""
    if text is None:
        return None
    if re.fullmatch(r"\d+(\.\d+){1,2}", text):
        text = f"=={text}.*" if text.count(".") == 1 else f"=={text}"
    try:
        return SpecifierSet(text)
    except InvalidSpecifier:
        return None


def _environment(version: str, full: str, machine: str) -> Environment:
    return {
        "implementation_name": "cpython",
        "implementation_version": full,
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": full,
        "python_version": version,
        "sys_platform": "linux",
        "extra": "",
    }


def can_judge(marker: Marker) -> bool:
    """Return whether a marker can be judged in every environment, unlike one on the host's platform release."""
    if re.search(r"\bplatform_(release|version)\b", str(marker)):
        return False
    try:
        return all(marker.evaluate(dict(one)) in (True, False) for one in environments(None))
    except (ValueError, RecursionError, TypeError, AttributeError):
        return False


def applies(marker: Marker | None, environment: Environment) -> bool:
    """Return whether a requirement with this marker applies in an environment."""
    return marker is None or marker.evaluate(dict(environment))
