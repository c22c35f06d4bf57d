"""Lines on the operating system: preloaded libraries, limits, memory, network, Ray and disk."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from npu_rl.training.host.describe_host import HostDescription
from npu_rl.training.host.line import NOTE, RED, UNKNOWN, DoctorLine
from npu_rl.training.host.machines import MachineKind
from npu_rl.training.host.wanted_host import WantedHost
from npu_rl.training.injected.npu_rl_host import entries, read_text

_GIB = 1 << 30
_INTERFACES = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def system_lines(
    host: HostDescription, wanted: WantedHost, kind: MachineKind, device: str, runs: Path | None
) -> Iterator[DoctorLine]:
    """Yield the lines on a host's system, for training on npu, cuda or cpu."""
    yield _preload(host, wanted, npu=device == "npu")
    yield _files(host, kind, device)
    yield _memlock(host, kind)
    yield _shm(host, kind, device)
    yield _interface(host, wanted)
    if host.root != "/":
        return
    if device == "npu":
        yield from running_ray(wanted.dies or host.facts["npus"])
    yield from (_disk(kind, place) for place in dict.fromkeys([Path("/tmp"), *([runs] if runs else [])]))


def _preload(host: HostDescription, wanted: WantedHost, *, npu: bool) -> DoctorLine:
    value, who = host.environ.get("LD_PRELOAD", ""), "this shell"
    if "LD_PRELOAD" in wanted.env:
        value, who = wanted.env["LD_PRELOAD"], f"env.LD_PRELOAD of {wanted.recipe or wanted.manifest}"
    want = "jemalloc, as a file that is there (vllm-ascend's Dockerfiles)" if npu else "files that are there"
    command = 'echo "$LD_PRELOAD"; grep -n LD_PRELOAD ~/.bashrc /etc/profile'
    names = [name for name in re.split(r"[\s:]+", value) if name.startswith("/")]
    missing = [name for name in names if not host.has(name)]
    found, state, fix = value or "empty", "", ""
    if "$" in value:
        fix = "Write the value itself: the loader expands no variable."
    elif missing:
        found = f"missing: {' '.join(missing)}"
        fix = "Correct the path or install jemalloc (libjemalloc2, jemalloc); the loader only warns, in every process."
    elif npu and "jemalloc" not in value:
        state, fix = NOTE, "Nothing fails without it; host memory grows."
    return DoctorLine("preload", "LD_PRELOAD", f"{found} ({who})", want, command, fix, state)


def _files(host: HostDescription, kind: MachineKind, device: str) -> DoctorLine:
    found, expected = host.facts["nofile"], kind["nofile"]
    few = found is not None and 0 <= found < expected.value
    want = f"{expected.value} or more ({expected.source})"
    fix = f"ulimit -n {expected.value} in the shell that starts Ray, or docker run --ulimit nofile={expected.value}"
    state = UNKNOWN if found is None else _grade(device) if few else ""
    return DoctorLine("nofile", "open files", _limit(found), want, "ulimit -n", fix if few else "", state)


def _memlock(host: HostDescription, kind: MachineKind) -> DoctorLine:
    found, expected = host.facts["memlock"], kind.get("memlock")
    short = expected is not None and found is not None and found >= 0
    want = f"unlimited ({expected.source})" if expected else ""
    fix = "docker run --ulimit memlock=-1" if short else ""
    state = UNKNOWN if found is None else NOTE if short else ""
    return DoctorLine("memlock", "locked memory", _limit(found, "bytes"), want, "ulimit -l", fix, state)


def _shm(host: HostDescription, kind: MachineKind, device: str) -> DoctorLine:
    found, expected = host.facts["shm"], kind["shm"]
    small = found is not None and found < expected.value
    want = f"{_size(expected.value)} or more ({expected.source})"
    fix = "docker run --shm-size=100g, or --ipc=host: Ray's object store is in it." if small else ""
    state = UNKNOWN if found is None else _grade(device) if small else ""
    size = "not known" if found is None else _size(found)
    return DoctorLine("shm", "shared memory", size, want, "df -h /dev/shm", fix, state)


def _interface(host: HostDescription, wanted: WantedHost) -> DoctorLine:
    states = {
        name: read_text(host.root, f"/sys/class/net/{name}/operstate").strip() or "unknown"
        for name in entries(host.root, "/sys/class/net")
        if name != "lo"
    }
    up = [name for name, state in states.items() if state == "up"]
    found = ", ".join(f"{name} {state}" for name, state in states.items()) or "none"
    name, by = wanted.interface or "", f"cluster.interface of {wanted.recipe}"
    if not name:
        set_here = (variable for variable in _INTERFACES if host.environ.get(variable, "").strip("=^"))
        by = next(set_here, "")
        name = host.environ.get(by, "")
    name = name.lstrip("=").partition(",")[0]
    want = state = fix = ""
    if name and not name.startswith("^"):
        want = f"{name}, up ({by})"
        # HCCL takes a prefix; the kernel calls some bonds and tunnels "unknown" that carry packets.
        if name != "lo" and not any(one.startswith(name) and states[one] != "down" for one in states):
            fix = f"Name one of those that are up: {', '.join(up) or 'none is'}. Names may differ between nodes."
    elif wanted.nodes > 1 and len(up) > 1:
        state, fix = NOTE, "Name the one that the nodes share: cluster.interface=NAME"
    return DoctorLine("interface", "network interfaces", found, want, "ip -br link", fix, state)


def running_ray(dies: int) -> Iterator[DoctorLine]:
    """Yield the line on a running Ray node of this host, whose workers inherit its environment and resources."""
    from psutil import Error, process_iter

    for process in process_iter(["name"]):
        if process.info["name"] != "raylet":
            continue
        try:
            words, environ = process.cmdline(), process.environ()
        except Error:
            continue  # it has ended, or is another user's
        # node:IP,1.0,CPU,192,NPU,16
        offered = re.search(r"--static_resource_list=\S*\bNPU,([\d.]+)", " ".join(words))
        npus = float(offered[1]) if offered else 0
        fix = ""
        if npus < dies:
            fix = f"ray stop, then ray start --resources '{{\"NPU\": {dies}}}', as --dry-run's head.sh does."
        elif "ASCEND_HOME_PATH" not in environ:
            fix = "ray stop, source both set_env.sh, then start it again: workers inherit its environment."
        found = f"pid {process.pid} offers NPU {npus:g}"
        if "ASCEND_HOME_PATH" not in environ:
            found += ", without CANN's variables"
        yield DoctorLine("ray-running", "running Ray", found, f"NPU {dies}", "ray status", fix)
        return


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


def _grade(device: str) -> str:
    """Return the state of a low limit, which matters where devices are."""
    return NOTE if device == "cpu" else RED


def _limit(value: int | None, unit: str = "") -> str:
    if value is None:
        return "not known"
    return "unlimited" if value < 0 else f"{value} {unit}".strip()


def _size(size: int) -> str:
    return f"{size / _GIB:.0f} GiB" if size >= _GIB else f"{size >> 20} MiB"
