"""`describe_host`: facts about a host, collected without changing it or opening a device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_rl.common.errors import HostError
from npu_rl.common.interpreter import Interpreter, read_interpreter
from npu_rl.training.host.npu_smi import NpuSmi, ask_npu_smi
from npu_rl.training.injected.npu_rl_host import below, host_facts, versions

SECONDS = 10.0  # for npu-smi and the interpreter


@dataclass(frozen=True)
class HostDescription:
    """A host.

    Attributes:
        root: Folder below which its files are.
        facts: Versions, devices, limits and memory, as nodes of a run are compared by them (npu_rl_host.py).
        files: The file that has each version.
    """

    root: str
    environ: Mapping[str, str]
    facts: Mapping[str, Any]
    files: Mapping[str, str]
    smi: NpuSmi
    python: Interpreter

    @property
    def kind(self) -> str:
        """a2, a3, 950, npu (of a kind that is not known), cuda or cpu. A table with Phy-ID is an A3's."""
        names = [chip.name for chip in self.smi.chips]
        if any("950" in name for name in names):
            return "950"
        if self.smi.phy_id and names:
            return "a3"
        if any(name.startswith("910B") for name in names):
            return "a2"
        if self.facts["npus"] or names:
            return "npu"
        return "cuda" if self.facts["gpus"] else "cpu"

    def has(self, place: str) -> bool:
        """Return whether the host has a file."""
        return Path(below(self.root, place)).exists()


def describe_host(
    python: str | Interpreter,
    root: Path = Path("/"),
    environ: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
) -> HostDescription:
    """Describe a host, read-only; no device is opened.

    Args:
        python: The training interpreter.
        root: Folder below which files are read; its own npu-smi is run.
        environ: The environment of the training's shell; None for this process's.
        seconds: After which npu-smi and the interpreter are given up.
    """
    base, environ = str(root), os.environ if environ is None else environ
    with ThreadPoolExecutor(2) as pool:  # each may take its whole time
        smi = pool.submit(ask_npu_smi, root, environ, seconds)
        if isinstance(python, str):
            python = _read(python, environ, seconds)
        files = {name: place for name, (_, place) in versions(base, environ).items()}
        return HostDescription(base, environ, host_facts(base, environ), files, smi.result(), python)


def _read(python: str, environ: Mapping[str, str], seconds: float) -> Interpreter:
    try:
        return read_interpreter(python, environ, seconds)
    except HostError as error:
        return Interpreter(python, problem=error.why or error.what)
