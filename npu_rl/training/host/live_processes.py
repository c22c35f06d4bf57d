"""Processes that hold a device, and running Ray nodes, found in /proc."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from npu_rl.common.process import RUN_VARIABLE
from npu_rl.training.host.npu_smi import DeviceProcess
from npu_rl.training.injected.npu_rl_host import below, entries, read_text

_DEVICE = re.compile(r"/dev/((?:davinci|nvidia)[0-9]+)")
_RESOURCES = re.compile(r"--static_resource_list=(\S+)")


@dataclass(frozen=True)
class Raylet:
    """A running Ray node on this host.

    Attributes:
        resources: What it offers, such as NPU -> 16.
        environ: Its environment, which its workers inherit; empty if it is another user's.
    """

    pid: int
    resources: Mapping[str, float] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)


def find_processes(root: Path, seconds: float) -> tuple[tuple[DeviceProcess, ...], tuple[Raylet, ...], bool]:
    """Return the processes that hold a device file, the raylets, and whether all processes were checked.

    Other users' processes need root to be seen. It stops after so many seconds: a host of 16 dies can have 100,000
    open files.
    """
    deadline = time.monotonic() + seconds
    whole = True
    holders, raylets = [], []
    for name in entries(str(root), "/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        if time.monotonic() > deadline:
            whole = False
            break
        place = f"/proc/{name}"
        comm = read_text(str(root), f"{place}/comm").strip()
        device = _held_device(root, place)
        if device:
            run = _environ(root, place).get(RUN_VARIABLE, "").partition("-")[0]
            holders.append(DeviceProcess(int(name), comm, device, run))
        if comm == "raylet":
            raylets.append(Raylet(int(name), _resources(root, place), _environ(root, place)))
    return tuple(holders), tuple(raylets), whole


def _held_device(root: Path, place: str) -> str:
    """Return the first device that the process holds; "" without one, or if /proc is unreadable."""
    folder = below(str(root), f"{place}/fd")
    try:
        for name in os.listdir(folder):  # noqa: PTH208  every open file of a host
            found = _DEVICE.fullmatch(os.readlink(f"{folder}/{name}"))  # noqa: PTH115
            if found:
                return found[1]
    except OSError:
        pass
    return ""


def _environ(root: Path, place: str) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in read_text(str(root), f"{place}/environ").split("\0"))
    return {name: value for name, equals, value in pairs if equals}


def _resources(root: Path, place: str) -> dict[str, float]:
    """Return the resources in a raylet's command line: node:IP,1.0,CPU,192,NPU,16."""
    found = _RESOURCES.search(read_text(str(root), f"{place}/cmdline").replace("\0", " "))
    words = found[1].split(",") if found else []
    offered = {}
    for name, value in zip(words[::2], words[1::2], strict=False):
        try:
            offered[name] = float(value)
        except ValueError:
            continue
    return offered
