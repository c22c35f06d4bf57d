"""`describe_host`: facts about a host, collected without changing it or opening a device."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_rl.common.host_facts import free_disk
from npu_rl.training.host.live_processes import Raylet, find_processes
from npu_rl.training.host.network import HostNetwork, read_network
from npu_rl.training.host.npu_smi import DeviceProcess, NpuSmi, ask_npu_smi
from npu_rl.training.host.set_env import CANN, NNAL, SetEnv, source_set_env
from npu_rl.training.host.training_python import TrainingPython, read_python
from npu_rl.training.injected.npu_rl_host import (
    below,
    entries,
    host_facts,
    read_text,
    toolkit_homes,
    versions,
)

SMI_SECONDS = 10.0
_PROCESS_SECONDS = 3.0  # to look through /proc

# What torch_npu and vllm_ascend load, and what brings it.
LIBRARIES = {
    "libascendcl.so": "CANN",
    "libhccl.so": "CANN",
    "libatb.so": "NNAL",
    "libascend_hal.so": "the driver",
}
# Kernels of a SoC below opp; their names are those of vllm-ascend's builds and of CANN's own folders.
_KERNELS = "opp/built-in/op_impl/ai_core/tbe/kernel"
# `export LD_PRELOAD=FILE $LD_PRELOAD`, as MindSpeed-RL's install guide had it: the space makes a second argument.
_SPACE = re.compile(r"^[^#\n]*\bexport\s+LD_PRELOAD=\S+[ \t]+\$\{?LD_PRELOAD\b", re.MULTILINE)
_START_FILES = (
    "/etc/profile",
    "/etc/bash.bashrc",
    "/etc/bashrc",
    "/root/.bashrc",
    "/root/.bash_profile",
    "/root/.profile",
)


@dataclass(frozen=True)
class FreeDisk:
    """A file system.

    Attributes:
        free: Bytes; None if not known. `total` likewise.
    """

    place: str
    free: int | None
    total: int | None


@dataclass(frozen=True)
class HostDescription:
    """A host.

    Attributes:
        facts: Versions, devices, limits and memory, as nodes of a run are compared by them.
        files: The file that has each version.
        kind: a2, a3, 950, npu (of a kind that is not known), cuda or cpu.
        kernels_for: SoCs that the toolkit has compiled kernels for.
        libraries: Where the loader finds each of LIBRARIES; None if it does not.
        all_processes: Whether there was time to look at each process.
        preload: The files that LD_PRELOAD names, and whether each is there.
        spaced: Shell files whose LD_PRELOAD has the space of the published documents.
    """

    root: str
    kind: str
    facts: Mapping[str, Any]
    files: Mapping[str, str]
    environ: Mapping[str, str]
    smi: NpuSmi
    set_env: tuple[SetEnv, ...]
    python: TrainingPython
    holders: tuple[DeviceProcess, ...]
    raylets: tuple[Raylet, ...]
    all_processes: bool
    network: HostNetwork
    kernels_for: tuple[str, ...]
    libraries: Mapping[str, str | None]
    preload: tuple[tuple[str, bool], ...]
    spaced: tuple[str, ...]
    disks: tuple[FreeDisk, ...]


def describe_host(
    root: Path = Path("/"),
    *,
    environ: Mapping[str, str] | None = None,
    python: str | None = None,
    runs: Path | None = None,
    smi_seconds: float = SMI_SECONDS,
) -> HostDescription:
    """Describe a host, read-only; no device is opened.

    Args:
        root: Folder below which everything is read. Its own npu-smi and set_env.sh are run.
        environ: The environment of the training's shell; None for this process's, or of the folder's /proc/self.
        python: The training interpreter, as a path of the host.
        runs: Folder whose disk matters.
        smi_seconds: Seconds after which npu-smi, a set_env.sh or the interpreter is given up.
    """
    base = str(root)
    if environ is None:
        environ = dict(os.environ) if base == "/" else _recorded_environment(base)
    with ThreadPoolExecutor(5) as pool:  # each may take its whole time
        smi = pool.submit(ask_npu_smi, root, environ, smi_seconds)
        sourced = [pool.submit(source_set_env, root, environ, part, smi_seconds) for part in (CANN, NNAL)]
        interpreter = pool.submit(read_python, root, environ, python, smi_seconds)
        holders, raylets, whole = find_processes(root, _PROCESS_SECONDS)
        facts = host_facts(base, environ)
        table = smi.result()
        return HostDescription(
            root=base,
            kind=_kind(table, facts),
            facts=facts,
            files={name: place for name, (_, place) in versions(base, environ).items()},
            environ=environ,
            smi=table,
            set_env=tuple(script.result() for script in sourced),
            python=interpreter.result(),
            holders=_holders(table, holders),
            raylets=raylets,
            all_processes=whole,
            network=read_network(root),
            kernels_for=_kernels(base, environ),
            libraries={name: _library(base, environ, name) for name in LIBRARIES},
            preload=_preload(base, environ),
            spaced=_spaced(base, environ),
            disks=_disks(runs) if base == "/" else (),
        )


def _recorded_environment(base: str) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in read_text(base, "/proc/self/environ").split("\0"))
    return {name: value.rstrip("\n") for name, equals, value in pairs if equals}


def _kind(smi: NpuSmi, facts: Mapping[str, Any]) -> str:
    """Return the kind of machine. A 910B3 chip is an A2's, and a table with Phy-ID is an A3's."""
    names = [chip.name for chip in smi.chips]
    if any("950" in name for name in names):
        return "950"
    if smi.phy_id and names:
        return "a3"
    if any(name.startswith("910B") for name in names):
        return "a2"
    if facts["npus"] or names:
        return "npu"
    return "cuda" if facts["gpus"] else "cpu"


def _holders(smi: NpuSmi, found: tuple[DeviceProcess, ...]) -> tuple[DeviceProcess, ...]:
    """Return the processes on devices, each once. npu-smi also lists those of other users and containers."""
    known = {process.pid for process in found}
    return (*found, *(process for process in smi.processes if process.pid not in known))


def _kernels(base: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    names = {
        name
        for home in toolkit_homes(base, environ)[:1]
        for name in entries(base, f"{home}/{_KERNELS}")
        if name.startswith("ascend")
    }
    return tuple(sorted(names))


def _library(base: str, environ: Mapping[str, str], name: str) -> str | None:
    configured = [
        line.strip()
        for conf in entries(base, "/etc/ld.so.conf.d")
        for line in read_text(base, f"/etc/ld.so.conf.d/{conf}").splitlines()
    ]
    for folder in (*environ.get("LD_LIBRARY_PATH", "").split(":"), *configured):
        if folder.startswith("/") and Path(below(base, f"{folder}/{name}")).exists():
            return f"{folder}/{name}"
    return None


def _preload(base: str, environ: Mapping[str, str]) -> tuple[tuple[str, bool], ...]:
    names = [name for name in re.split(r"[\s:]+", environ.get("LD_PRELOAD", "")) if name]
    return tuple((name, not name.startswith("/") or Path(below(base, name)).is_file()) for name in names)


def _spaced(base: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    home = environ.get("HOME", "")
    own = (
        [f"{home}/{name}" for name in (".bashrc", ".bash_profile", ".profile")]
        if home.startswith("/")
        else []
    )
    drop_ins = [f"/etc/profile.d/{name}" for name in entries(base, "/etc/profile.d") if name.endswith(".sh")]
    places = dict.fromkeys([*_START_FILES, *own, *drop_ins])
    return tuple(place for place in places if _SPACE.search(read_text(base, place)))


def _disks(runs: Path | None) -> tuple[FreeDisk, ...]:
    found = []
    for place in dict.fromkeys([Path("/tmp"), *([runs] if runs else [])]):
        try:
            total: int | None = shutil.disk_usage(place).total
        except OSError:
            total = None  # a folder that is not there yet
        found.append(FreeDisk(str(place), free_disk(place), total))
    return tuple(found)
