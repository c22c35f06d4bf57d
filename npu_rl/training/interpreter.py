"""The training interpreter: another Python than npu-rl's own, it may be, with torch, Ray and the rest in it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from npu_rl.errors import HostError
from npu_rl.training.process import run_quietly

# From 3.13 on there is no wheel of ray 2.42 and numpy 1.26, and the locked verl was never run there.
SUPPORTED = ((3, 10), (3, 12))

_PROBE = """
import importlib.metadata as m, json, sys
found = {}
for name in json.loads(sys.argv[1]):
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        found[name] = None
print(json.dumps({"version": list(sys.version_info[:3]), "executable": sys.executable, "packages": found}))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python that was looked at. packages: name -> version, None for one that is not installed."""

    path: str
    version: tuple[int, int, int]
    packages: Mapping[str, str | None]

    @property
    def shown(self) -> str:
        return f"{self.path} (Python {'.'.join(map(str, self.version))})"


def choose(given: str | None, receipt: Mapping[str, object]) -> str:
    """The interpreter to use: the one given, else the one the receipt names, else the one npu-rl runs in."""
    if given is not None:
        return given
    named = receipt.get("python")
    return named if isinstance(named, str) and Path(named).is_file() else sys.executable


def look(python: str, requirements: Sequence[str]) -> Interpreter:
    """Ask it for its version and packages. Raises HostError if it can't be run.

    It is asked outside the code tree, whose dist-info folders would answer for what is not installed.
    """
    from packaging.requirements import Requirement

    names = [Requirement(text).name for text in requirements]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    # -I -S would hide user site-packages, which the training itself does see.
    finished = run_quietly([python, "-c", _PROBE, json.dumps(names)], environment, Path(os.sep), 120.0)
    try:
        if finished.code != 0:
            raise ValueError(finished.stderr.strip()[-500:] or f"exit status {finished.code}")
        told = json.loads(finished.stdout.splitlines()[-1])
        major, minor, micro = told["version"]
    except (ValueError, KeyError, IndexError) as error:
        raise HostError(
            f"{python} is not a Python that can be used for training",
            why=str(error),
            hint="Name one that is: --python PATH",
        ) from error
    return Interpreter(told["executable"], (major, minor, micro), told["packages"])


def demand(
    interpreter: Interpreter,
    requirements: Sequence[str],
    *,
    by: str = "the manifest",
    extra: str = "rehearsal",
) -> None:
    """Raise HostError, with everything that is missing at once, if it can't run what is required.

    requirements: PEP 508, from the lock. A local version (2.13.0+cpu) counts as the public one. by, extra: who
    requires them and what brings them, for the message.
    """
    from packaging.requirements import Requirement
    from packaging.version import InvalidVersion, Version

    short = interpreter.version[:2]
    if not SUPPORTED[0] <= short <= SUPPORTED[1]:
        raise HostError(
            f"Python {short[0]}.{short[1]} can't run the training",
            where=interpreter.shown,
            why="The pinned ray, numpy and torch have builds for Python 3.10 to 3.12 only.",
            hint="Name another interpreter: --python python3.12",
        )
    wrong = []
    for text in requirements:
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue
        found = interpreter.packages.get(wanted.name)
        if found is None:
            wrong.append(f"{text}: not installed")
            continue
        try:
            public = Version(found).public
        except InvalidVersion:
            public = found
        if wanted.specifier and not wanted.specifier.contains(public, prereleases=True):
            wrong.append(f"{text}: {found} is installed")
    if wrong:
        for_whom = " (for the quickstart)" if extra == "rehearsal" else ""
        count = f"{len(wrong)} of {len(requirements)} packages"
        raise HostError(
            f"The training interpreter lacks {count} that {by} requires",
            where=interpreter.shown,
            why="\n".join(wrong),
            hint=f"Install them there: pip install 'npu-rl[{extra}]'{for_whom},\n"
            "or name an interpreter that has them: --python PATH",
        )
