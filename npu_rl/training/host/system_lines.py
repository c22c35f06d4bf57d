"""Lines on the operating system: preloaded libraries, limits, memory, network, Ray, clock and disk."""

from __future__ import annotations

from collections.abc import Iterator

from npu_rl.training.host.describe_host import HostDescription
from npu_rl.training.host.line import NOTE, OK, RED, UNKNOWN, DoctorLine
from npu_rl.training.host.machines import MachineKind
from npu_rl.training.host.network import is_reserved
from npu_rl.training.host.wanted_host import WantedHost

_HCCL_PORT = 60000  # HCCL's own first port; HCCL_IF_BASE_PORT sets another
_GIB = 1 << 30


def system_lines(
    host: HostDescription, wanted: WantedHost, kind: MachineKind, npu: bool
) -> Iterator[DoctorLine]:
    """Yield the lines on a host's system. npu: Whether it trains on NPUs."""
    devices = npu or "cuda" in (host.kind, wanted.device)
    yield _preload(host, wanted, npu)
    yield _files(host, kind, devices)
    yield _memlock(host, kind)
    yield _shm(host, kind, devices)
    yield _huge_pages(host)
    yield _interface(host, wanted)
    yield from _ports(host, wanted, npu)
    yield from _ray(host, wanted, npu)
    yield _clock(host)
    yield from _disks(host, kind)


def _preload(host: HostDescription, wanted: WantedHost, npu: bool) -> DoctorLine:
    value = wanted.env.get("LD_PRELOAD", host.environ.get("LD_PRELOAD", ""))
    who = (
        f"env.LD_PRELOAD of {wanted.recipe or wanted.manifest}"
        if "LD_PRELOAD" in wanted.env
        else "this shell"
    )
    missing = [name for name, there in host.preload if not there and "LD_PRELOAD" not in wanted.env]
    want = "jemalloc, as a file that is there (vllm-ascend's Dockerfiles)" if npu else "files that are there"
    command = 'echo "$LD_PRELOAD"; grep -n LD_PRELOAD ~/.bashrc /etc/profile'
    found = f"{value or 'empty'} ({who})"
    if "$" in value:
        fix = "Write the value itself: the loader expands no variable."
        return DoctorLine("preload", RED, "LD_PRELOAD", found, want, command, fix)
    if missing:
        fix = "Correct the path or install jemalloc (libjemalloc2, jemalloc); the loader only warns, in every process."
        return DoctorLine(
            "preload", RED, "LD_PRELOAD", f"missing: {' '.join(missing)} ({who})", want, command, fix
        )
    if host.spaced:
        fix = "Write a colon for the space: export LD_PRELOAD=FILE:$LD_PRELOAD. With it, what was preloaded is lost."
        at = f"a space before $LD_PRELOAD in {', '.join(host.spaced)}"
        return DoctorLine("preload", RED, "LD_PRELOAD", at, want, command, fix)
    if npu and "jemalloc" not in value:
        return DoctorLine(
            "preload",
            NOTE,
            "LD_PRELOAD",
            found,
            want,
            command,
            "Nothing fails without it; host memory grows.",
        )
    return DoctorLine("preload", OK, "LD_PRELOAD", found, want, command)


def _files(host: HostDescription, kind: MachineKind, devices: bool) -> DoctorLine:
    found, expected = host.facts["nofile"], kind["nofile"]
    few = found is not None and 0 <= found < expected.value
    state = UNKNOWN if found is None else OK if not few else RED if devices else NOTE
    fix = f"ulimit -n {expected.value} in the shell that starts Ray, or docker run --ulimit nofile={expected.value}"
    return DoctorLine(
        "nofile", state, "open files", _limit(found), f"{expected.value} or more ({expected.source})", "ulimit -n",
        fix if few else "",
    )  # fmt: skip


def _memlock(host: HostDescription, kind: MachineKind) -> DoctorLine:
    found, expected = host.facts["memlock"], kind.get("memlock")
    short = expected is not None and found is not None and found >= 0
    return DoctorLine(
        "memlock", UNKNOWN if found is None else NOTE if short else OK, "locked memory", _limit(found, "bytes"),
        f"unlimited ({expected.source})" if expected else "", "ulimit -l",
        "docker run --ulimit memlock=-1" if short else "",
    )  # fmt: skip


def _limit(value: int | None, unit: str = "") -> str:
    if value is None:
        return "not known"
    return "unlimited" if value < 0 else f"{value} {unit}".strip()


def _shm(host: HostDescription, kind: MachineKind, devices: bool) -> DoctorLine:
    found, expected = host.facts["shm"], kind["shm"]
    small = found is not None and found < expected.value
    state = UNKNOWN if found is None else OK if not small else RED if devices else NOTE
    return DoctorLine(
        "shm", state, "shared memory", "not known" if found is None else _size(found),
        f"{_size(expected.value)} or more ({expected.source})", "df -h /dev/shm",
        "docker run --shm-size=500g, or --ipc=host: Ray's object store is in it." if small else "",
    )  # fmt: skip


def _huge_pages(host: HostDescription) -> DoctorLine:
    total, free = host.facts["huge_pages"], host.facts["huge_pages_free"]
    found = "not known" if total is None else f"{_size(total)}, {_size(free or 0)} free"
    return DoctorLine(
        "huge-pages", UNKNOWN if total is None else OK, "huge pages", found, "", "grep Huge /proc/meminfo"
    )


def _interface(host: HostDescription, wanted: WantedHost) -> DoctorLine:
    states = {name: state for name, state in host.network.interfaces.items() if name != "lo"}
    up = [name for name, state in states.items() if state == "up"]
    found = ", ".join(f"{name} {state}" for name, state in states.items()) or "none"
    name = wanted.interface
    if name is None:
        names = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        name, by = next(
            ((host.environ[n], n) for n in names if host.environ.get(n, "").strip("=^")), ("", "")
        )
    else:
        by = f"cluster.interface of {wanted.recipe}"
    name = name.lstrip("=").partition(",")[0]
    command = "ip -br link"
    if not name or name.startswith("^"):
        state = NOTE if wanted.nodes > 1 and len(up) > 1 else OK
        fix = "Name the one that the nodes share: cluster.interface=NAME" if state == NOTE else ""
        return DoctorLine("interface", state, "network interfaces", found, "", command, fix)
    # HCCL takes a prefix; the kernel calls some bonds and tunnels "unknown" that carry packets.
    fits = [one for one, state in host.network.interfaces.items() if one.startswith(name) and state != "down"]
    fix = (
        ""
        if fits
        else f"Name one of those that are up: {', '.join(up) or 'none is'}. Names may differ between nodes."
    )
    return DoctorLine(
        "interface", OK if fits else RED, "network interfaces", found, f"{name}, up ({by})", command, fix
    )


def _ports(host: HostDescription, wanted: WantedHost, npu: bool) -> Iterator[DoctorLine]:
    if not npu:
        return
    text = wanted.env.get("HCCL_IF_BASE_PORT") or host.environ.get("HCCL_IF_BASE_PORT") or str(_HCCL_PORT)
    count = wanted.dies or host.facts["npus"] or 1
    want = f"{count} free ports from HCCL_IF_BASE_PORT={text}"
    command = "ss -ltn; sysctl net.ipv4.ip_local_port_range net.ipv4.ip_local_reserved_ports"
    if not text.isdigit() or not 0 < int(text) <= 65536 - count:
        fix = f"Set a port from 1024 to {65536 - count}."
        yield DoctorLine("ports", RED, "HCCL's ports", text, want, command, fix)
        return
    ports = range(int(text), int(text) + count)
    taken = sorted(host.network.listening & set(ports))
    ephemeral = host.network.ephemeral
    loose = [
        port
        for port in ports
        if ephemeral and ephemeral[0] <= port <= ephemeral[1] and not is_reserved(port, host.network.reserved)
    ]
    if taken:
        fix = "End who listens there, or set another HCCL_IF_BASE_PORT on all nodes."
        yield DoctorLine(
            "ports", RED, "HCCL's ports", f"in use: {', '.join(map(str, taken))}", want, command, fix
        )
    elif loose:
        fix = f"sysctl -w net.ipv4.ip_local_reserved_ports={ports[0]}-{ports[-1]}: the kernel may give them to others."
        yield DoctorLine("ports", NOTE, "HCCL's ports", "free now, and not reserved", want, command, fix)
    else:
        yield DoctorLine("ports", OK, "HCCL's ports", "free", want, command)


def _ray(host: HostDescription, wanted: WantedHost, npu: bool) -> Iterator[DoctorLine]:
    """Yield the line on a running Ray node, whose workers inherit its environment and resources."""
    for raylet in host.raylets[:1]:
        offered = {name: value for name, value in raylet.resources.items() if name in ("CPU", "GPU", "NPU")}
        found = f"pid {raylet.pid} offers " + (
            ", ".join(f"{name} {value:g}" for name, value in offered.items()) or "?"
        )
        need = wanted.dies or host.facts["npus"]
        command, want = "ray status", f"NPU {need}" if npu else ""
        if npu and raylet.resources and raylet.resources.get("NPU", 0) < need:
            fix = f"ray stop, then ray start --resources '{{\"NPU\": {need}}}', as --dry-run's head.sh does."
            yield DoctorLine("ray-running", RED, "running Ray", found, want, command, fix)
        elif npu and raylet.environ and "ASCEND_HOME_PATH" not in raylet.environ:
            fix = "ray stop, source both set_env.sh, then start it again: workers inherit its environment."
            yield DoctorLine(
                "ray-running", RED, "running Ray", f"{found}, without CANN's variables", want, command, fix
            )
        else:
            yield DoctorLine("ray-running", OK, "running Ray", found, want, command)


def _clock(host: HostDescription) -> DoctorLine:
    found = {True: "set by a daemon", False: "not set by a daemon", None: "not known"}[
        host.network.synchronized
    ]
    state = {True: OK, False: NOTE, None: UNKNOWN}[host.network.synchronized]
    fix = (
        "Start chronyd or systemd-timesyncd: logs of nodes can't be compared otherwise."
        if state == NOTE
        else ""
    )
    return DoctorLine("clock", state, "clock", found, "set by a daemon", "timedatectl", fix)


def _disks(host: HostDescription, kind: MachineKind) -> Iterator[DoctorLine]:
    expected = kind["disk_free_fraction"]
    for disk in host.disks:
        known = disk.free is not None and disk.total
        full = known and (disk.free or 0) < expected.value * (disk.total or 0)
        found = (
            f"{disk.place}: {_size(disk.free or 0)} free of {_size(disk.total or 0)}"
            if known
            else f"{disk.place}: not known"
        )
        yield DoctorLine(
            "disk", RED if full else OK if known else UNKNOWN, "disk", found,
            f"{expected.value:.0%} free ({expected.source})", f"df -h {disk.place}",
            "Free some: npu-rl plan prints what the checkpoints need." if full else "",
        )  # fmt: skip


def _size(size: int) -> str:
    return f"{size / _GIB:.0f} GiB" if size >= _GIB else f"{size >> 20} MiB"
