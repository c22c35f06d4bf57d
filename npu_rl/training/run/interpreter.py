"""The training interpreter, which may differ from npu-rl's own: version, packages and missing packages."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.common.errors import HostError
from npu_rl.common.package_versions import lacking_packages
from npu_rl.common.process import run_quietly

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# For 3.13 and later there are no wheels of ray 2.42 and numpy 1.26, and the locked verl was never run with it.
SUPPORTED = ((3, 10), (3, 12))

# Packages of an image for NPUs, in versions that fit its CANN; pip must not choose or replace them.
IMAGE_PACKAGES = frozenset(
    {"torch", "torch-npu", "torchvision", "torchaudio", "torchair", "apex", "triton-ascend"}
)

_PROBE = """
import importlib.metadata as m, json, os, sys, sysconfig
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
    "prefix": sys.prefix,
    "managed": sys.prefix == sys.base_prefix
    and os.path.exists(os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")),
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python and its packages.

    Attributes:
        packages: Version by canonical name; None for a package that is not installed.
        torch_npu: Version of torch_npu; None if it is not installed.
        managed: Whether it belongs to the operating system (PEP 668).
        prefix: Folder of its environment.
    """

    path: str
    version: tuple[int, int, int]
    packages: Mapping[str, str | None]
    torch_npu: str | None = None
    managed: bool = False
    prefix: str = ""

    @property
    def shown(self) -> str:
        """Path and version, for messages."""
        return f"{self.path} (Python {'.'.join(map(str, self.version))})"


def probe(python: str, requirements: Sequence[str]) -> Interpreter:
    """Run an interpreter to find its version and the packages of the requirements. Raises HostError if it can't be run.

    It is run outside the code tree, whose dist-info folders would count as installed packages.
    """
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    names = [canonicalize_name(Requirement(text).name) for text in requirements]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    # Not -I -S, which hide the user's site-packages: the training imports from them.
    finished = run_quietly([python, "-c", _PROBE, json.dumps(names)], environment, Path(os.sep), 120.0)
    try:
        if finished.code != 0:
            raise ValueError(finished.stderr.strip()[-500:] or f"exit status {finished.code}")
        probed = json.loads(finished.stdout.splitlines()[-1])
        major, minor, micro = probed["version"]
    except (ValueError, KeyError, IndexError) as error:
        raise HostError(
            f"{python} is not a Python that can be used for training",
            why=str(error),
            hint="Name one that is: --python PATH",
        ) from error
    return Interpreter(
        probed["executable"],
        (major, minor, micro),
        probed["packages"],
        probed["torch_npu"],
        probed["managed"],
        probed["prefix"],
    )


def require(
    interpreter: Interpreter,
    requirements: Sequence[str],
    *,
    by: str = "the manifest",
    extra: str = "rehearsal",
    npu: bool = False,
    install: str | None = None,
) -> None:
    """Check that an interpreter can run training.

    Args:
        requirements: PEP 508 requirements. A local version (2.13.0+cpu) counts as the public one.
        by: What requires them, for the message.
        extra: npu-rl's extra that installs them, for the message; empty if none does.
        npu: Whether they are for a run on NPUs.
        install: The command that installs all of them; None if no lock of packages has them.

    Raises:
        HostError: For a Python version without the pinned packages, or with all packages that are missing.
    """
    short = interpreter.version[:2]
    if not SUPPORTED[0] <= short <= SUPPORTED[1]:
        raise HostError(
            f"Python {short[0]}.{short[1]} can't run the training",
            where=interpreter.shown,
            why="The pinned ray, numpy and torch have builds for Python 3.10 to 3.12 only.",
            hint="Name another interpreter: --python python3.12",
        )
    lacking = lacking_packages(interpreter.packages, requirements)
    missing = [wanted for wanted, _ in lacking]
    if missing:
        raise HostError(
            f"The training interpreter lacks {len(missing)} of {len(requirements)} packages that {by} requires",
            where=interpreter.shown,
            why="\n".join(
                f"{wanted}: {f'{found} is installed' if found else 'not installed'}"
                for wanted, found in lacking
            ),
            hint=_install_hint(
                missing, interpreter, extra, npu or interpreter.torch_npu is not None, install
            ),
        )


def _install_hint(
    missing: Sequence[Requirement], interpreter: Interpreter, extra: str, npu: bool, install: str | None
) -> str:
    """Return how to install missing packages. With torch_npu, --no-deps keeps pip from replacing its torch."""
    python = shlex.quote(interpreter.path)
    other = "name an interpreter that has them: --python PATH"
    ours = Path(interpreter.path) == Path(sys.executable)
    if install is not None and (npu or not (ours and extra)):
        return f"Install the whole set, as it is locked:\n{install}\nOr {other}"
    if not npu:
        what = f"'npu-rl[{extra}]'" if ours and extra else _quoted(missing)
        return f"Install them there: {python} -m pip install {what},\nor {other}"
    installable = [wanted for wanted in missing if _canonical(wanted.name) not in IMAGE_PACKAGES]
    from_image = [wanted.name for wanted in missing if _canonical(wanted.name) in IMAGE_PACKAGES]
    lines = []
    if from_image:
        verb = "comes" if len(from_image) == 1 else "come"
        lines.append(
            f"{' and '.join(from_image)} {verb} with the image or host, in versions that fit its CANN."
        )
    if installable:
        lines.append(
            "Install them without their dependencies, so that pip leaves torch and torch_npu as they are:\n"
            f"{python} -m pip install --no-deps {_quoted(installable)}\n"
            f"`{python} -m pip check` names what else they need; install that with --no-deps, too."
        )
    return "\n".join([*lines, f"{'Or n' if lines else 'N'}{other[1:]}"])


def _quoted(wanted: Sequence[Requirement]) -> str:
    """Return requirements as arguments of pip, without extras and markers."""
    return " ".join(
        shlex.quote(f"{one.name} @ {one.url}" if one.url else f"{one.name}{one.specifier}") for one in wanted
    )


def _canonical(name: str) -> str:
    from packaging.utils import canonicalize_name

    return canonicalize_name(name)
