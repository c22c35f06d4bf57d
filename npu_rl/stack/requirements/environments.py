"""The environments for judging a marker such as `python_version < "3.11"`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from packaging.markers import Marker
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from npu_rl.stack.requirements.version_ranges import exclude_each_other

PYTHONS = tuple(f"3.{minor}" for minor in range(8, 15))
MACHINES = ("aarch64", "x86_64")
_PATCHES = range(30)

Environment = Mapping[str, str]


def environments(python: str | None) -> tuple[Environment, ...]:
    """Return the environments of a stack: CPython on Linux, of the versions that its host may have, on both machines.

    Args:
        python: The host's Python, as a range or a version; None, or a text that is neither, for any.
    """
    allowed = python_range(python) or SpecifierSet()
    versions = {version: _newest(version, allowed) for version in PYTHONS}
    found = {version: full for version, full in versions.items() if full is not None}
    return tuple(
        _environment(version, full, machine)
        for version, full in (found or {one: f"{one}.0" for one in PYTHONS}).items()
        for machine in MACHINES
    )


def python_range(text: str | None) -> SpecifierSet | None:
    """Return a host's Python as a range: 3.11 is each 3.11.x. None for a text that is neither a version nor a range."""
    if text is None:
        return None
    if re.fullmatch(r"\d+\.\d+", text):
        text = f"=={text}.*"
    elif re.fullmatch(r"\d+\.\d+\.\d+", text):
        text = f"=={text}"
    try:
        return SpecifierSet(text)
    except InvalidSpecifier:
        return None


def _newest(version: str, allowed: SpecifierSet) -> str | None:
    """Return the newest patch release of a version that the host may have."""
    if exclude_each_other(allowed, SpecifierSet(f"=={version}.*")):
        return None
    patches = (f"{version}.{patch}" for patch in reversed(_PATCHES))
    return next(filter(allowed.contains, patches), None)


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
        for environment in environments(None):
            marker.evaluate(dict(environment))
    except (ValueError, RecursionError, TypeError, AttributeError):
        return False
    return True


@lru_cache(maxsize=1024)
def _evaluated(marker: str, environment: tuple[tuple[str, str], ...]) -> bool:
    return Marker(marker).evaluate(dict(environment))


def applies(marker: Marker | None, environment: Environment) -> bool:
    """Return whether a requirement with this marker applies in an environment."""
    return marker is None or _evaluated(str(marker), tuple(environment.items()))
