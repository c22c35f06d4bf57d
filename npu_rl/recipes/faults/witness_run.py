"""Witnesses of known faults, executed on a code tree.

A witness is patchsets/witnesses/ID.py: it runs in the code folder and prints a JSON object with "fault". Its constants
STAND_INS and ENVIRONMENT, if it has them, name the stand-ins for its path and its variables.
"""

from __future__ import annotations

import ast
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from npu_rl.common import python_roots
from npu_rl.common.errors import HostError
from npu_rl.common.process import run_quietly
from npu_rl.recipes.faults.verdict import UNKNOWN, Verdict

EXTRA = "faults"  # of npu-rl: what the witnesses import
TIMEOUT = 600.0  # seconds; the slowest, with two ranks that import vLLM, took 133 on two busy cores

NOT_RUN, HAS_FAULT, HAS_NONE = "not run", "fault", "no fault"

_ROOTS = {"npu": python_roots.NPU, "vllm": python_roots.VLLM, "apex": python_roots.APEX}
_USUAL = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "NPU_RL_STANDINS": "cpu",
}
_LONGEST = 300  # characters of a reason


class Witnessed(NamedTuple):
    """The result of a witness.

    Attributes:
        state: HAS_FAULT, HAS_NONE or NOT_RUN.
        reason: Why it was not run; else empty.
        figures: What it measured.
    """

    state: str
    reason: str = ""
    figures: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class FaultReport:
    """The result of `faults`.

    Attributes:
        tree: The tree that was searched.
        witnesses: What --run found, by the faults' ids.
    """

    tree: str
    verdicts: tuple[Verdict, ...]
    witnesses: Mapping[str, Witnessed]

    @property
    def ok(self) -> bool:
        """Return whether every verdict is known, none is a wrong result, and no witness disagrees."""
        return not any(
            one.is_open_wrong_result or one.state == UNKNOWN or self.disagrees(one) for one in self.verdicts
        )

    def disagrees(self, verdict: Verdict) -> bool:
        """Return whether the witness contradicts the texts; of an unproven fix it is to show none."""
        found = self.witnesses.get(verdict.fault.id)
        return found is not None and found.state == (HAS_NONE if verdict.is_open else HAS_FAULT)


def run_witness(
    script: Path, code: Path, python: str, variables: Mapping[str, str] | None = None
) -> Witnessed:
    """Execute a witness with the tree's own functions, on this CPU with the stand-ins.

    Nothing is written beside the sources. Whatever keeps the witness from its last line, a missing package first of
    all, makes it NOT_RUN.

    Args:
        script: The witness.
        code: The code folder.
        python: The interpreter; it needs the packages of the extra `faults`.
        variables: More of its environment, such as a switch of an adaptation.
    """
    with tempfile.TemporaryDirectory(prefix="npu-rl-witness-") as folder:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("NPU_RL_", "PYTHON"))}
        environment = kept | {"TMPDIR": folder} | witness_variables(script, code) | dict(variables or {})
        try:
            finished = run_quietly([python, "-W", "ignore", str(script)], environment, code, TIMEOUT)
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


def witness_variables(script: Path, code: Path | str) -> dict[str, str]:
    """Return the variables that a witness needs: the stand-ins and the tree on its path, and its own ENVIRONMENT."""
    names = {"STAND_INS": (), "ENVIRONMENT": {}, **_constants(script)}
    roots = [
        python_roots.INJECTED,
        python_roots.REHEARSAL,
        *(_ROOTS[name] for name in names["STAND_INS"]),
        code,
    ]
    return {**_USUAL, "PYTHONPATH": os.pathsep.join(map(str, roots)), **names["ENVIRONMENT"]}


def required_packages() -> list[str]:
    """Return the names of the packages of the extra `faults`, and of the extras that it requires."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    extras, names = [EXTRA], set()
    for extra in extras:  # it grows: an extra requires others
        for wanted in map(Requirement, metadata.requires("npu-rl") or ()):
            if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
                continue
            if wanted.marker.evaluate({"extra": extra}):
                extras += [one for one in wanted.extras if wanted.name == "npu-rl" and one not in extras]
                names |= {canonicalize_name(wanted.name)} - {"npu-rl"}
    return sorted(names)


def _constants(script: Path) -> dict[str, Any]:
    """Return the literals that a script assigns to names on its top level."""
    found = {}
    for statement in ast.parse(script.read_bytes()).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id
            if name in ("STAND_INS", "ENVIRONMENT"):
                found[name] = ast.literal_eval(statement.value)
    return found


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:_LONGEST] if lines else ""
