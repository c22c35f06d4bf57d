"""The interpreter that packages are installed into: its folders, and what they have."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from npu_rl.common.bounded import parse_json
from npu_rl.common.errors import HostError
from npu_rl.common.process import run_quietly

_SECONDS = 120.0
_PROBE = """
import json, os, platform, site, sys, sysconfig
paths = sysconfig.get_paths()
print(json.dumps({
    "executable": sys.executable,
    "version": platform.python_version(),
    "implementation": sys.implementation.name,
    "machine": platform.machine(),
    "libc": platform.libc_ver(),
    "prefix": sys.prefix,
    "venv": sys.prefix != sys.base_prefix,
    "managed": os.path.exists(os.path.join(paths["stdlib"], "EXTERNALLY-MANAGED")),
    "paths": {name: paths[name] for name in ("purelib", "platlib", "scripts", "data")},
    "path": [place for place in sys.path if place],
}))
"""


@dataclass(frozen=True)
class InstalledPackage:
    """A package that an interpreter has.

    Attributes:
        name: Its canonical name.
        site: Folder of packages in which it is.
        recorded: Whether it has the list of its files.
    """

    name: str
    version: str
    site: Path
    recorded: bool
    distribution: Distribution = field(compare=False, repr=False)


@dataclass(frozen=True)
class TargetPython:
    """An interpreter and its packages.

    Attributes:
        path: The path of its program.
        root: Its prefix, with links resolved.
        site: Its own folder of packages, with links resolved.
        scripts: Its folder of programs, with links resolved.
        libc: Name and version of the C library.
        search: Folders of packages, in the order in which Python looks for them.
        packages: The packages that it imports, by canonical name.
        absent: Whether it belongs to a virtual environment that is still to be made.
    """

    path: str
    version: str
    implementation: str
    machine: str
    libc: tuple[str, str]
    root: Path
    site: Path
    scripts: Path
    search: tuple[Path, ...]
    packages: Mapping[str, InstalledPackage]
    venv: bool = False
    managed: bool = False
    absent: bool = False

    @property
    def short(self) -> str:
        """Major and minor version."""
        return ".".join(self.version.split(".")[:2])

    @property
    def versions(self) -> dict[str, str]:
        """Versions of the packages that it imports, by canonical name."""
        return {one.name: one.version for one in self.packages.values()}

    @property
    def shown(self) -> str:
        """Path and version, for messages."""
        return f"{self.path} (Python {self.version})"


def read_target(python: str) -> TargetPython:
    """Return an interpreter and its packages, which are read from their metadata. Raises HostError."""
    found = _probe(python)
    site, platlib = (_real(found["paths"][name]) for name in ("purelib", "platlib"))
    root, scripts = _real(found["prefix"]), _real(found["paths"]["scripts"])
    libraries = f"lib/python{'.'.join(found['version'].split('.')[:2])}/site-packages"
    search = tuple(dict.fromkeys(_real(place) for place in found["path"]))
    target = TargetPython(
        path=found["executable"],
        version=found["version"],
        implementation=found["implementation"],
        machine=found["machine"],
        libc=(found["libc"][0], found["libc"][1]),
        root=root,
        site=site,
        scripts=scripts,
        search=search,
        packages=_packages(search),
        venv=found["venv"],
        managed=found["managed"],
    )
    if (site, platlib, scripts) != (root / libraries, root / libraries, root / "bin") and not target.managed:
        raise HostError(
            "npu-rl can't install into this Python: its folders are not where pip puts them by default",
            where=target.shown,
            why=f"Its packages are in {site} and {platlib}, its programs in {scripts}; known is {root / libraries}.",
            hint="Install into an environment of its own: --venv DIR",
        )
    return target


def venv_target(folder: Path, base: TargetPython) -> TargetPython:
    """Return the interpreter of a virtual environment that is still to be made from another."""
    root = _real(folder)
    site = root / f"lib/python{base.short}/site-packages"
    return TargetPython(
        path=str(root / "bin/python"),
        version=base.version,
        implementation=base.implementation,
        machine=base.machine,
        libc=base.libc,
        root=root,
        site=site,
        scripts=root / "bin",
        search=(site,),
        packages={},
        venv=True,
        absent=True,
    )


def _probe(python: str) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    # Not -I: what the user's own site-packages have is imported by a training, too.
    finished = run_quietly([python, "-c", _PROBE], environment, Path(os.sep), _SECONDS)
    try:
        if finished.code != 0:
            raise ValueError(finished.stderr.strip()[-500:] or f"exit status {finished.code}")
        found: dict[str, Any] = parse_json(finished.stdout.splitlines()[-1].encode())
        return found
    except (ValueError, IndexError) as error:
        raise HostError(
            f"{python} is not a Python that packages can be installed into",
            why=str(error),
            hint="Name one that is: --python PATH",
        ) from error


def _packages(search: Sequence[Path]) -> dict[str, InstalledPackage]:
    """Return the first package of each name, since Python imports that one."""
    found: dict[str, InstalledPackage] = {}
    for site in search:
        if not site.is_dir():
            continue
        for one in distributions(path=[str(site)]):
            try:
                name, version = one.metadata["Name"], one.version
            except (KeyError, ValueError, OSError):
                continue  # a damaged dist-info, which Python doesn't find either
            if isinstance(name, str) and isinstance(version, str):
                key = str(canonicalize_name(name))
                recorded = _file_list(one) is not None
                found.setdefault(key, InstalledPackage(key, version, site, recorded, one))
    return found


def _file_list(distribution: Distribution) -> str | None:
    try:
        return distribution.read_text("RECORD")
    except (OSError, ValueError):
        return None


def _real(path: str | Path) -> Path:
    return Path(os.path.realpath(path))
