"""The training interpreter of a host and its packages, found without importing them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import parse_json
from npu_rl.common.python_roots import INJECTED
from npu_rl.training.host.bounded_command import run_bounded
from npu_rl.training.injected.npu_rl_host import below, entries
from npu_rl.training.injected.npu_rl_packages import packages

_OUTPUT = 4 << 20  # bytes of JSON; 300 packages take 20 kB
_USUAL = ("/usr/local/bin/python3", "/usr/bin/python3")


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


def read_python(root: Path, environ: Mapping[str, str], python: str | None, seconds: float) -> TrainingPython:
    """Return an interpreter and its packages, from one child process or, below a root folder, from files only.

    Args:
        python: As a host's path; below a folder None is the one of vllm-ascend's images, or the system's.
    """
    if str(root) != "/":
        return _of_files(str(root), python)
    if python is None:
        return TrainingPython("", "none is named")
    environment = {name: value for name, value in environ.items() if not name.startswith("PYTHON")}
    argv = [python, str(INJECTED / "npu_rl_packages.py")]
    outcome = run_bounded(argv, environment, Path("/"), seconds=seconds, most=_OUTPUT)
    if outcome.problem:
        return TrainingPython(python, outcome.problem)
    try:
        read = parse_json(outcome.text.splitlines()[-1])
        return python_of(read["executable"], read["version"], read)
    except (ValueError, KeyError, IndexError, TypeError):
        last = outcome.text.strip().splitlines()[-1:] or [f"exit status {outcome.code}"]
        return TrainingPython(python, f"it is not a usable Python: {last[0][:200]}")


def _of_files(root: str, python: str | None) -> TrainingPython:
    """Return the interpreter in a folder that looks like a host, based on its library folder names."""
    installed = [f"/usr/local/{name}/bin/python3" for name in entries(root, "/usr/local")]
    for place in [python] if python else [*installed, *_USUAL]:
        library = f"{Path(place).parent.parent}/lib"
        for name in entries(root, library):
            if re.fullmatch(r"python3\.\d+", name):
                site = below(root, f"{library}/{name}/site-packages")
                exact = re.search(r"python(3\.\d+\.\d+)", place)  # /usr/local/python3.11.13/bin/python3
                return python_of(place, exact[1] if exact else name.removeprefix("python"), packages([site]))
    return TrainingPython(
        python or "", "the folder has no such Python" if python else "the folder has no Python"
    )


def python_of(path: str, version: str, read: Mapping[str, Any]) -> TrainingPython:
    """Parse the output of npu_rl_packages. Raises KeyError, TypeError or AttributeError if it is malformed."""
    versions = {str(name): tuple(map(str, all_of)) for name, all_of in read["packages"].items()}
    managed = read.get("managed") is True
    return TrainingPython(str(path), "", str(version), versions, read["vllm_ascend"], managed)
