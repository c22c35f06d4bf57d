"""The hosts that a manifest's packages are locked for: one per Python version and processor architecture."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from npu_rl.common.errors import UsageError
from npu_rl.stack.pylocks.pylock_names import machine_name, pylock_name
from npu_rl.stack.requirements.environments import Environment, environments

PYTHONS = ("3.10", "3.11", "3.12")  # those that the pinned ray, numpy and torch have wheels for
# The oldest of the images of NPU hosts, openEuler 22.03, has 2.34. On 2.28, llguidance would have to be compiled.
_GLIBC = {"npu": "2.34", "cuda": "2.34", "cpu": "2.28"}


@dataclass(frozen=True)
class Target:
    """CPython of one minor version on Linux, on one architecture, with the oldest glibc that wheels may require."""

    python: str
    machine: str
    glibc: str

    @property
    def shown(self) -> str:
        """The target as in file names, such as py311-aarch64."""
        return f"py{self.python.replace('.', '')}-{self.machine}"

    @property
    def uv_platform(self) -> str:
        """The target as uv's --python-platform."""
        return f"{self.machine}-manylinux_{self.glibc.replace('.', '_')}"

    @property
    def markers(self) -> str:
        """The target as a marker (PEP 508)."""
        return (
            f"python_version == '{self.python}' and platform_machine == '{self.machine}' "
            "and sys_platform == 'linux' and implementation_name == 'cpython'"
        )

    def environment(self) -> Environment:
        """Return the values of markers on this target."""
        found = environments(self.python)
        return next(one for one in found if one["platform_machine"] == self.machine)


def targets(device: str, python: str | None) -> tuple[Target, ...]:
    """Return the targets of a manifest.

    Args:
        device: The manifest's device. The only published GPU stack has an image and wheels for x86-64 only.
        python: The manifest's `host.python`; None for every version that can train.
    """
    glibc = _GLIBC[device]
    found = (Target(one["python_version"], one["platform_machine"], glibc) for one in environments(python))
    return tuple(
        one for one in found if one.python in PYTHONS and (device != "cuda" or one.machine == "x86_64")
    )


def pylock_path(manifest: Path, target: Target) -> Path:
    """Return the path of a lock beside its manifest."""
    return manifest.with_name(pylock_name(manifest.stem, target.python, target.machine))


def choose_targets(
    known: tuple[Target, ...],
    pythons: Iterable[str | None] | None,
    machines: Iterable[str | None] | None,
    options: tuple[str, str],
) -> list[Target]:
    """Return the targets for each version and machine, once; see `choose_target`."""
    pairs = product(pythons or [None], machines or [None])
    return list(dict.fromkeys(choose_target(known, python, machine, options) for python, machine in pairs))


def choose_target(
    known: tuple[Target, ...],
    python: str | None = None,
    machine: str | None = None,
    options: tuple[str, str] = ("--python-version", "--machine"),
) -> Target:
    """Return the target for a command.

    An option that is not given defaults to this host's value if the manifest has it, or to the only Python version.

    Args:
        options: The command's options for Python and machine, for the error.

    Raises:
        UsageError: If the manifest has no such target.
    """
    machines = list(dict.fromkeys(one.machine for one in known))
    pythons = list(dict.fromkeys(one.python for one in known))
    machine = machine_name(machine or platform.machine().lower())
    if python is None:
        running = f"{sys.version_info[0]}.{sys.version_info[1]}"
        python = running if running in pythons else pythons[0] if pythons else running
    for one in known:
        if (one.python, one.machine) == (python, machine):
            return one
    raise UsageError(
        f"Unsupported host: Python {python} on {machine}",
        why=f"The manifest's `host` and `device` allow Python {', '.join(pythons)} on {' and '.join(machines)}.",
        hint=f"Choose one of them with {' and '.join(options)}.",
    )
