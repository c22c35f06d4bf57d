"""The interpreter that packages are installed into, and what it has."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.bounded import parse_json
from npu_rl.common.errors import HostError
from npu_rl.common.process import run_quietly

_SECONDS = 120.0
# distributions() yields the package that Python imports first. A dist-info without metadata has no name.
_PROBE = """
import importlib.metadata, json, os, platform, re, sys, sysconfig
packages, own = {}, []
for one in importlib.metadata.distributions():
    name = one.metadata and one.metadata["Name"]
    if name and one.version:
        packages.setdefault(re.sub("[-_.]+", "-", name).lower(), one.version)
        own = own or (name == "npu-rl" and one.requires) or []
print(json.dumps({
    "path": sys.executable,
    "version": platform.python_version(),
    "machine": platform.machine(),
    "implementation": sys.implementation.name,
    "libc": platform.libc_ver(),
    "root": sys.prefix,
    "managed": sys.prefix == sys.base_prefix
        and os.path.exists(os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")),
    "packages": packages,
    "own_needs": own,
}))
"""


@dataclass(frozen=True)
class TargetPython:
    """An interpreter and its packages.

    Attributes:
        path: The path of its program.
        libc: Name and version of the C library.
        root: Its prefix.
        managed: Whether the operating system installs its packages (PEP 668).
        packages: Versions of the packages that it imports, by canonical name.
        own_needs: Requirements of npu-rl, if that is installed in it.
        absent: Whether it belongs to a virtual environment that is still to be made.
    """

    path: str
    version: str
    machine: str
    implementation: str
    libc: tuple[str, str]
    root: str
    managed: bool
    packages: Mapping[str, str]
    own_needs: Sequence[str] = ()
    absent: bool = False

    @property
    def short(self) -> str:
        """Major and minor version."""
        return ".".join(self.version.split(".")[:2])

    @property
    def shown(self) -> str:
        """Path and version, for messages."""
        return f"{self.path} (Python {self.version})"


def read_target(python: str) -> TargetPython:
    """Return an interpreter and its packages, which are read from their metadata. Raises HostError."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    # Not -I: what the user's own site-packages have is imported by a training, too.
    finished = run_quietly([python, "-c", _PROBE], environment, Path(os.sep), _SECONDS)
    try:
        if finished.code != 0:
            raise ValueError(finished.stderr.strip()[-500:] or f"exit status {finished.code}")
        return TargetPython(**parse_json(finished.stdout.splitlines()[-1].encode()))
    except (ValueError, IndexError, TypeError) as error:
        raise HostError(
            f"{python} is not a Python that packages can be installed into",
            why=str(error),
            hint="Name one that is: --python PATH",
        ) from error
