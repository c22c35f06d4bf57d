"""A Python interpreter and its packages, for installations, trainings and reports."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import parse_json
from npu_rl.common.errors import HostError
from npu_rl.common.process import run_quietly
from npu_rl.common.python_roots import INJECTED

_SECONDS = 120.0


@dataclass(frozen=True)
class Interpreter:
    """An interpreter and its packages.

    Attributes:
        packages: Versions of the packages that it imports, by canonical name.
        prefix: Folder of its environment.
        managed: Whether the operating system installs its packages (PEP 668).
        libc: Name and version of the C library.
        own_needs: Requirements of npu-rl, if that is installed in it.
        vllm_ascend: Place of an installed vllm_ascend, whether it has its compiled module and what it was built for.
        absent: Whether it belongs to a virtual environment that is still to be made.
        problem: Why it could not be read, for a report; "" if it could.
    """

    path: str
    version: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    managed: bool = False
    machine: str = ""
    implementation: str = ""
    libc: Sequence[str] = ("", "")
    own_needs: Sequence[str] = ()
    vllm_ascend: Mapping[str, Any] | None = None
    absent: bool = False
    problem: str = ""

    @property
    def short(self) -> str:
        """Major and minor version."""
        return ".".join(self.version.split(".")[:2])

    @property
    def shown(self) -> str:
        """Path and version, for messages."""
        return f"{self.path} (Python {self.version})"


def read_interpreter(
    python: str, environ: Mapping[str, str] | None = None, seconds: float = _SECONDS
) -> Interpreter:
    """Return an interpreter and its packages, from one child process that imports none of them. Raises HostError.

    It is run outside of code trees, whose dist-info folders would count as installed packages.
    """
    environ = os.environ if environ is None else environ
    environment = {name: value for name, value in environ.items() if not name.startswith("PYTHON")}
    # Not -I: what the user's own site-packages have is imported by a training, too.
    finished = run_quietly([python, str(INJECTED / "npu_rl_packages.py")], environment, Path(os.sep), seconds)
    try:
        if finished.code != 0:
            raise ValueError(finished.stderr.strip()[-500:] or f"exit status {finished.code}")
        return Interpreter(**parse_json(finished.stdout.splitlines()[-1].encode()))
    except (ValueError, IndexError, TypeError) as error:
        raise HostError(
            f"{python} is not a usable Python", why=str(error), hint="Name another interpreter: --python PATH"
        ) from error
