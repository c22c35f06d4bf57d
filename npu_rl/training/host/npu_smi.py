"""Parsing of `npu-smi info`: chips and the processes on them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.errors import HostError
from npu_rl.common.process import run_quietly
from npu_rl.training.injected.npu_rl_host import below

_PLACES = ("/usr/local/sbin/npu-smi", "/usr/local/bin/npu-smi", "/usr/bin/npu-smi", "/usr/sbin/npu-smi")
_DRIVER_LIBRARIES = ("driver", "common")  # folders below driver/lib64 that npu-smi loads from

# Two lines a chip. Tables differ in width and in whether they have Phy-ID (Atlas A3): vllm-ascend#152 has an A2's,
# #2035 and #12980 an A3's.
_HEADER = re.compile(r"^\|\s*npu-smi\s+(\S+)", re.MULTILINE)
_NAME = re.compile(r"^\|\s*(\d+)\s+([A-Za-z0-9][\w.-]*)\s*\|\s*([A-Za-z]+)\s*\|")
_CHIP = re.compile(r"^\|\s*(\d+)(?:\s+(\d+))?\s*\|\s*([0-9A-Fa-f]{4}:\S+)\s*\|(.*)\|")
_MEMORY = re.compile(r"(\d+)\s*/\s*(\d+)")
_PROCESS = re.compile(r"^\|\s*(\d+)\s+(\d+)\s*\|\s*(\d+)\s*\|\s*(.*?)\s*\|\s*(\d+)\s*\|")


@dataclass(frozen=True)
class Chip:
    """One chip (a die) of the table.

    Attributes:
        used: Its memory in use, in MB (2^20 bytes) as npu-smi prints it; `total` likewise.
    """

    npu: int
    number: int
    name: str
    health: str
    used: int | None
    total: int | None

    def __str__(self) -> str:
        """Return its name in the report."""
        return f"NPU {self.npu} chip {self.number}"


@dataclass(frozen=True)
class NpuSmi:
    """Outcome of `npu-smi info`.

    Attributes:
        place: The program; "" if the host has none.
        problem: Why there is no table; "" if there is one.
        phy_id: Whether the table has the column Phy-ID, which only an Atlas A3's has.
        processes: Those that hold a device, also of other users and containers.
    """

    place: str
    problem: str = ""
    version: str = ""
    phy_id: bool = False
    chips: tuple[Chip, ...] = ()
    processes: tuple[str, ...] = ()


def ask_npu_smi(root: Path, environ: Mapping[str, str], seconds: float) -> NpuSmi:
    """Run a host's `npu-smi info` with a time limit."""
    folders = [f"{folder}/npu-smi" for folder in environ.get("PATH", "").split(":") if folder.startswith("/")]
    for place in dict.fromkeys([*_PLACES, *folders]):
        program = Path(below(str(root), place))
        if program.is_file():
            break
    else:
        return NpuSmi("", "the host has no npu-smi")
    try:
        done = run_quietly([str(program), "info"], _environment(root, environ), Path("/"), seconds)
    except HostError as error:
        return NpuSmi(place, error.what[0].lower() + error.what[1:])
    if done.code:
        last = (done.stdout + done.stderr).strip().splitlines()[-1:] or ["it printed nothing"]
        return NpuSmi(place, f"it ended with {done.code}: {last[0][:200]}")
    return parse_npu_smi(place, done.stdout)


def parse_npu_smi(place: str, text: str) -> NpuSmi:
    """Parse the table of `npu-smi info`; `problem` is set if the table is missing."""
    version = _HEADER.search(text)
    if version is None:
        return NpuSmi(place, "its output is not the table of `npu-smi info`")
    chips: list[Chip] = []
    processes: list[str] = []
    named: tuple[int, str, str] | None = None
    for line in text.splitlines():
        if found := _PROCESS.match(line):
            processes.append(f"pid {found[3]} ({found[4][:100]}) on NPU {found[1]} chip {found[2]}")
        elif found := _NAME.match(line):
            named = int(found[1]), found[2], found[3]
        elif named and (found := _CHIP.match(line)):
            # Memory-Usage, then HBM-Usage: the last pair; a chip without HBM has one.
            pairs = _MEMORY.findall(found[4])
            used, total = map(int, pairs[-1]) if pairs else (None, None)
            chips.append(Chip(named[0], int(found[1]), named[1], named[2], used, total))
    return NpuSmi(place, "", version[1], "Phy-ID" in text, tuple(chips), tuple(processes))


def _environment(root: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with the driver's libraries, which npu-smi needs if set_env.sh was not sourced."""
    driver = "/usr/local/Ascend/driver/lib64"
    folders = [below(str(root), f"{driver}/{name}") for name in _DRIVER_LIBRARIES]
    before = [environ["LD_LIBRARY_PATH"]] if environ.get("LD_LIBRARY_PATH") else []
    kept = {name: value for name, value in environ.items() if name != "LD_PRELOAD"}
    return {**kept, "LD_LIBRARY_PATH": ":".join([*before, *folders])}
