"""The training interpreter and the packages installed in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import parse_json
from npu_rl.common.errors import HostError
from npu_rl.common.process import run_quietly
from npu_rl.common.python_roots import INJECTED


@dataclass(frozen=True)
class TrainingPython:
    """An interpreter.

    Attributes:
        problem: Why it could not be read; "" if it could.
        versions: Installed versions by canonical name: more than one is a package that is installed twice.
        vllm_ascend: Place of an installed vllm_ascend, whether it has its compiled module and what it was built for.
        managed: Whether it belongs to the operating system (PEP 668).
    """

    path: str
    problem: str = ""
    version: str = ""
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    vllm_ascend: Mapping[str, Any] | None = None
    managed: bool = False

    def first(self, name: str) -> str | None:
        """Return the version that Python would import; None if the package is not installed."""
        return next(iter(self.versions.get(name, ())), None)


def read_python(python: str, environ: Mapping[str, str], seconds: float) -> TrainingPython:
    """Return an interpreter and its packages, from one child process that imports none of them."""
    environment = {name: value for name, value in environ.items() if not name.startswith("PYTHON")}
    try:
        done = run_quietly([python, str(INJECTED / "npu_rl_packages.py")], environment, Path("/"), seconds)
    except HostError as error:
        return TrainingPython(python, error.why or error.what)
    try:
        read = parse_json(done.stdout.splitlines()[-1])
        return python_of(read["executable"], read["version"], read)
    except (ValueError, KeyError, IndexError, TypeError):
        last = (done.stdout + done.stderr).strip().splitlines()[-1:] or [f"exit status {done.code}"]
        return TrainingPython(python, f"it is not a usable Python: {last[0][:200]}")


def python_of(path: str, version: str, read: Mapping[str, Any]) -> TrainingPython:
    """Parse the output of npu_rl_packages. Raises KeyError, TypeError or AttributeError if it is malformed."""
    versions = {str(name): tuple(map(str, all_of)) for name, all_of in read["packages"].items()}
    managed = read.get("managed") is True
    return TrainingPython(str(path), "", str(version), versions, read["vllm_ascend"], managed)
