"""The training interpreter: another Python than npu-rl's own, it may be, with torch, Ray and the rest in it."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.errors import HostError
from npu_rl.training.process import run_quietly

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# From 3.13 on there is no wheel of ray 2.42 and numpy 1.26, and the locked verl was never run there.
SUPPORTED = ((3, 10), (3, 12))

# What an image for NPUs brings, in versions that fit its CANN: nothing that pip may choose or replace.
OF_THE_IMAGE = frozenset(
    {"torch", "torch-npu", "torchvision", "torchaudio", "torchair", "apex", "triton-ascend"}
)

_PROBE = """
import importlib.metadata as m, json, sys
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return None
print(json.dumps({
    "version": list(sys.version_info[:3]),
    "executable": sys.executable,
    "packages": {name: version(name) for name in json.loads(sys.argv[1])},
    "torch_npu": version("torch_npu"),
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python that was looked at.

    packages: name -> version, None for one that is not installed. torch_npu: its version, if it is installed.
    """

    path: str
    version: tuple[int, int, int]
    packages: Mapping[str, str | None]
    torch_npu: str | None = None

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
    return Interpreter(told["executable"], (major, minor, micro), told["packages"], told["torch_npu"])


def demand(
    interpreter: Interpreter,
    requirements: Sequence[str],
    *,
    by: str = "the manifest",
    extra: str = "rehearsal",
    npu: bool = False,
) -> None:
    """Raise HostError, with everything that is missing at once, if it can't run what is required.

    requirements: PEP 508, from the lock. A local version (2.13.0+cpu) counts as the public one. by, extra: who
    requires them and what brings them, for the message. npu: they are for a run on NPUs.
    """
    from packaging.requirements import Requirement

    short = interpreter.version[:2]
    if not SUPPORTED[0] <= short <= SUPPORTED[1]:
        raise HostError(
            f"Python {short[0]}.{short[1]} can't run the training",
            where=interpreter.shown,
            why="The pinned ray, numpy and torch have builds for Python 3.10 to 3.12 only.",
            hint="Name another interpreter: --python python3.12",
        )
    lacking: list[Requirement] = []
    why = []
    for text in requirements:
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue
        found = interpreter.packages.get(wanted.name)
        if found is None or not _satisfies(found, wanted):
            lacking.append(wanted)
            why.append(f"{text}: {'not installed' if found is None else f'{found} is installed'}")
    if lacking:
        raise HostError(
            f"The training interpreter lacks {len(lacking)} of {len(requirements)} packages that {by} requires",
            where=interpreter.shown,
            why="\n".join(why),
            hint=_how_to_get(lacking, interpreter, extra, npu or interpreter.torch_npu is not None),
        )


def _satisfies(found: str, wanted: Requirement) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        public = Version(found).public
    except InvalidVersion:
        public = found
    return not wanted.specifier or wanted.specifier.contains(public, prereleases=True)


def _how_to_get(lacking: Sequence[Requirement], interpreter: Interpreter, extra: str, npu: bool) -> str:
    """What to do about packages that are missing. npu: beside a torch_npu, whose torch pip must not touch."""
    python = shlex.quote(interpreter.path)
    other = "name an interpreter that has them: --python PATH"
    if not npu:
        ours = Path(interpreter.path) == Path(sys.executable)
        what = f"'npu-rl[{extra}]'" if ours else _quoted(lacking)
        return f"Install them there: {python} -m pip install {what},\nor {other}"
    mine = [wanted for wanted in lacking if _canonical(wanted.name) not in OF_THE_IMAGE]
    images = [wanted.name for wanted in lacking if _canonical(wanted.name) in OF_THE_IMAGE]
    lines = []
    if images:
        verb = "comes" if len(images) == 1 else "come"
        lines.append(f"{' and '.join(images)} {verb} with the image or host, in versions that fit its CANN.")
    if mine:
        lines.append(
            "Install them without their dependencies, so that pip leaves torch and torch_npu as they are:\n"
            f"{python} -m pip install --no-deps {_quoted(mine)}\n"
            f"`{python} -m pip check` names what they need besides; install that with --no-deps, too."
        )
    return "\n".join([*lines, f"{'Or n' if lines else 'N'}{other[1:]}"])


def _quoted(wanted: Sequence[Requirement]) -> str:
    """Requirements as arguments of pip, without extras and markers."""
    return " ".join(shlex.quote(f"{one.name}{one.specifier}") for one in wanted)


def _canonical(name: str) -> str:
    from packaging.utils import canonicalize_name

    return canonicalize_name(name)
