"""Witnesses of known faults, executed on the code tree of a workspace."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npu_rl.common import python_roots
from npu_rl.common.errors import HostError
from npu_rl.common.process import run_quietly
from npu_rl.recipes.faults.fault import KnownFault, Witness

TIMEOUT = 600.0  # seconds; the slowest, with two ranks that import vLLM, took 133 on two busy cores

NOT_RUN, HAS_FAULT, HAS_NONE = "not run", "fault", "no fault"

_ROOTS = {"npu": python_roots.NPU, "vllm": python_roots.VLLM, "apex": python_roots.APEX}
_LONGEST = 300  # characters of a reason


@dataclass(frozen=True)
class Witnessed:
    """The result of a witness.

    Attributes:
        state: HAS_FAULT, HAS_NONE or NOT_RUN.
        reason: Why it was not run; else empty.
        figures: What it measured.
    """

    state: str
    reason: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the documented JSON."""
        return {"state": self.state, "reason": self.reason, "figures": dict(self.figures)}


def run_witness(
    fault: KnownFault, code: Path, python: str, variables: Mapping[str, str] | None = None
) -> Witnessed:
    """Execute a fault's witness with the tree's own functions, on this CPU with the stand-ins.

    Nothing is written beside the sources. Whatever keeps the witness from its last line, a missing package first of
    all, makes it NOT_RUN.

    Args:
        code: The code folder.
        python: The interpreter; it needs the packages of the extras.
        variables: More of its environment, such as a switch of an adaptation.
    """
    with tempfile.TemporaryDirectory(prefix="npu-rl-witness-") as folder:
        environment = witness_environment(fault.witness, code, Path(folder)) | dict(variables or {})
        argv = [python, "-W", "ignore", str(fault.witness.path)]
        try:
            finished = run_quietly(argv, environment, code, TIMEOUT)
        except HostError as error:
            return Witnessed(NOT_RUN, error.what)
    if finished.code != 0:
        return Witnessed(NOT_RUN, _last_line(finished.stderr) or f"exit status {finished.code}")
    try:
        found = json.loads(finished.stdout.strip().splitlines()[-1])
        shown = found.pop("fault")
    except (ValueError, IndexError, KeyError, AttributeError):
        return Witnessed(NOT_RUN, "its last line is not a JSON object with 'fault'")
    if not isinstance(shown, bool):
        return Witnessed(NOT_RUN, f"'fault' is {shown!r}, neither true nor false")
    return Witnessed(HAS_FAULT if shown else HAS_NONE, figures=found)


def witness_environment(witness: Witness, code: Path, folder: Path) -> dict[str, str]:
    """Return a witness's environment, without this process's adaptation switches.

    Args:
        folder: An empty folder for what the stack writes into a home or a cache.
    """
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("NPU_RL_", "PYTHON"))
    }
    roots = [python_roots.INJECTED, *(_ROOTS[name] for name in witness.standins), code]
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join(map(str, roots)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(folder),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "NPU_RL_STANDINS": "cpu",
        **dict(witness.environment),
    }


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:_LONGEST] if lines else ""
