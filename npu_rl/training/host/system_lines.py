"""Lines on the operating system: preloaded libraries, limits, memory, network and disk."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from npu_rl.training.host.describe_host import HostDescription
from npu_rl.training.host.line import NOTE, UNKNOWN, DoctorLine
from npu_rl.training.host.machines import Expectation, MachineKind
from npu_rl.training.host.wanted_host import WantedHost
from npu_rl.training.injected.npu_rl_host import entries, read_text

_GIB = 1 << 30
_INTERFACES = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def system_lines(
    host: HostDescription, wanted: WantedHost, kind: MachineKind, device: str, runs: Path | None
) -> Iterator[DoctorLine]:
    """Yield the lines on a host's system, for training on npu, cuda or cpu."""
    yield _preload(host, wanted)
    few = kind["nofile"]
    fix = f"ulimit -n {few.value} in the shell that starts Ray, or docker run --ulimit nofile={few.value}"
    yield _minimum(("nofile", "open files"), host.facts["nofile"], few, str, "ulimit -n", fix, device)
    fix = "docker run --shm-size=100g, or --ipc=host: Ray's object store is in it."
    shm, command = ("shm", "shared memory"), "df -h /dev/shm"
    yield _minimum(shm, host.facts["shm"], kind["shm"], _size, command, fix, device)
    yield _interface(host, wanted)
    if host.root != "/":
        return
    yield from (_disk(kind, place) for place in dict.fromkeys([Path("/tmp"), *([runs] if runs else [])]))


def _preload(host: HostDescription, wanted: WantedHost) -> DoctorLine:
    value, who = host.environ.get("LD_PRELOAD", ""), "this shell"
    if "LD_PRELOAD" in wanted.env:
        value, who = wanted.env["LD_PRELOAD"], f"env.LD_PRELOAD of {wanted.recipe or wanted.manifest}"
    # The loader expands no variable, and looks for a name without a slash in its own folders.
    names = [name for name in re.split(r"[\s:]+", value) if "/" in name or "$" in name]
    missing = [name for name in names if "$" in name or not host.has(name)]
    found = f"missing: {' '.join(missing)}" if missing else value or "empty"
    fix = "Correct the path or install jemalloc (libjemalloc2, jemalloc); the loader only warns, in every process."
    command = 'echo "$LD_PRELOAD"; grep -n LD_PRELOAD ~/.bashrc /etc/profile'
    want = "files that are there"
    return DoctorLine("preload", "LD_PRELOAD", f"{found} ({who})", want, command, fix if missing else "")


def _minimum(
    name: tuple[str, str],
    found: int | None,
    expected: Expectation,
    shown: Callable[[int], str],
    command: str,
    fix: str,
    device: str,
) -> DoctorLine:
    """Return the line on a limit, which matters where devices are; -1 means unlimited."""
    want = f"{shown(expected.value)} or more ({expected.source})"
    if found is None:
        return DoctorLine(*name, "not known", want, command, state=UNKNOWN)
    if found < 0 or found >= expected.value:
        return DoctorLine(*name, "unlimited" if found < 0 else shown(found), want, command)
    return DoctorLine(*name, shown(found), want, command, fix, NOTE if device == "cpu" else "")


def _interface(host: HostDescription, wanted: WantedHost) -> DoctorLine:
    states = {
        name: read_text(host.root, f"/sys/class/net/{name}/operstate").strip() or "unknown"
        for name in entries(host.root, "/sys/class/net")
    }
    up = [name for name, state in states.items() if state == "up"]
    found = ", ".join(f"{name} {state}" for name, state in states.items() if name != "lo") or "none"
    given = {f"cluster.interface of {wanted.recipe}": wanted.interface or ""}
    given |= {variable: host.environ.get(variable, "") for variable in _INTERFACES}
    by, value = next(((by, value) for by, value in given.items() if value.strip("=^")), ("", ""))
    name = value.lstrip("=").partition(",")[0]
    want = state = fix = ""
    if name and not name.startswith("^"):
        want = f"{name}, up ({by})"
        # HCCL takes a prefix; the kernel calls some bonds and tunnels "unknown" that carry packets.
        if not any(one.startswith(name) and states[one] != "down" for one in states):
            fix = f"Name one of those that are up: {', '.join(up) or 'none is'}. Names may differ between nodes."
    elif wanted.nodes > 1 and len(up) > 1:
        state, fix = NOTE, "Name the one that the nodes share: cluster.interface=NAME"
    return DoctorLine("interface", "network interfaces", found, want, "ip -br link", fix, state)


def _disk(kind: MachineKind, place: Path) -> DoctorLine:
    expected = kind["disk_free_fraction"]
    want, command = f"{expected.value:.0%} free ({expected.source})", f"df -h {place}"
    try:
        disk = shutil.disk_usage(next(one for one in (place, *place.parents) if one.exists()))
    except OSError as error:
        return DoctorLine("disk", "disk", f"{place}: {error.strerror}", want, command, state=UNKNOWN)
    found = f"{place}: {_size(disk.free)} free of {_size(disk.total)}"
    full = disk.free < expected.value * disk.total
    fix = "Free some: npu-rl plan prints what the checkpoints need." if full else ""
    return DoctorLine("disk", "disk", found, want, command, fix)


def _size(size: int) -> str:
    return f"{size / _GIB:.0f} GiB" if size >= _GIB else f"{size >> 20} MiB"
