"""Lines on the machine: its kind, devices, memory, and the processes that hold devices."""

from __future__ import annotations

from collections.abc import Iterator

from npu_rl.training.host.describe_host import HostDescription
from npu_rl.training.host.line import NOTE, OK, RED, UNKNOWN, DoctorLine
from npu_rl.training.host.machines import MachineKind, machine_kind
from npu_rl.training.host.wanted_host import WantedHost

_SMI = "npu-smi info"
_NPUS = ("a2", "a3", "950", "npu")
_SHOWN = 5  # processes and chips that a line names
_PER_GB = 1e9 / (1 << 20)  # npu-smi's MB in 10^9 bytes


def device_lines(host: HostDescription, wanted: WantedHost, kind: MachineKind) -> Iterator[DoctorLine]:
    """Yield the lines on devices, for a host that has devices or should have."""
    yield _machine(host, wanted, kind)
    npu = is_npu(host, wanted)
    if not npu and "cuda" not in (host.kind, wanted.device):
        return
    yield _count(host, wanted, kind, npu)
    if npu:
        yield _control_files(host)
        yield _npu_smi(host)
        yield from _chips(host, wanted, kind)
    yield _visible(host, wanted, npu)
    yield _holders(host, npu)


def is_npu(host: HostDescription, wanted: WantedHost) -> bool:
    """Return whether Ascend's stack is relevant: the host has NPUs, or the run needs them."""
    return wanted.device == "npu" or (not wanted.device and host.kind in _NPUS)


def _machine(host: HostDescription, wanted: WantedHost, kind: MachineKind) -> DoctorLine:
    found = machine_kind(host.kind).title
    asked = machine_kind(wanted.kind).title if wanted.kind else ""
    want = f"{asked} (recipe {wanted.recipe})" if asked else ""
    npu = is_npu(host, wanted)
    command = "npu-smi info; ls /dev/davinci*" if npu else "ls /dev"
    if host.kind == "950":
        return DoctorLine(
            "machine", NOTE, "machine", found, want, command, f"npu-rl's values are unproven: {kind.unproven}"
        )
    if wanted.kind in ("", "cpu", host.kind):
        return DoctorLine("machine", OK, "machine", found, want, command)
    if host.kind == "npu" and npu:
        fix = "The line npu-smi shows why its table could not be read."
        return DoctorLine("machine", UNKNOWN, "machine", found, want, command, fix)
    if host.kind in _NPUS and npu:
        fix = "Set cluster.dies, dies_per_card and die_memory_gb for this machine, and run npu-rl plan again."
    else:
        fix = f"Run it where there is {asked}, or rehearse it here: npu-rl train {wanted.recipe} --rehearse"
    return DoctorLine("machine", RED, "machine", found, want, command, fix)


def _count(host: HostDescription, wanted: WantedHost, kind: MachineKind, npu: bool) -> DoctorLine:
    name, found = ("davinci", host.facts["npus"]) if npu else ("nvidia", host.facts["gpus"])
    usual = kind.get("devices")
    if wanted.dies is not None:
        counts, who = [wanted.dies], f"cluster.dies of {wanted.recipe}"
    elif usual:
        counts, who = usual.value, usual.source
    else:
        counts, who = [], ""
    text = f"{found} of /dev/{name}N"
    tabled = len(host.smi.chips)
    if npu and tabled and tabled != found:
        text += f", {tabled} in npu-smi's table"
    want = f"{' or '.join(map(str, counts))} ({who})" if counts else ""
    fewest = min(found, tabled) if npu and tabled else found
    # A recipe may use fewer dies than the host has; a kind of machine has all of its own.
    short = fewest < counts[0] if wanted.dies is not None else bool(counts) and fewest not in counts
    fix = (
        f"Pass every device to the container (--device /dev/{name}0 ...). Missing on the host, too: see dmesg and "
        f"{'npu-smi info -l' if npu else 'nvidia-smi'}, and take the node out."
    )
    # A container with some of the host's devices may see all of them in the table.
    if short or (npu and 0 < tabled < found):
        command = f"ls /dev/{name}*; {_SMI if npu else 'nvidia-smi -L'}"
        stops = short and wanted.dies is not None
        return DoctorLine("devices", RED, "devices", text, want, command, fix, stops)
    return DoctorLine("devices", OK if counts else NOTE, "devices", text, want, f"ls /dev/{name}*")


def _control_files(host: HostDescription) -> DoctorLine:
    missing = [f"/dev/{name}" for name in host.facts["control_missing"]]
    return DoctorLine(
        "device-files",
        RED if missing else OK,
        "device files",
        f"missing: {' '.join(missing)}" if missing else "davinci_manager, devmm_svm, hisi_hdc",
        "all three (docker run of vllm-ascend's and the stacks' documents)",
        "ls /dev/davinci_manager /dev/devmm_svm /dev/hisi_hdc",
        "Start the container with --device for each of them." if missing else "",
    )


def _npu_smi(host: HostDescription) -> DoctorLine:
    smi = host.smi
    if not smi.problem:
        return DoctorLine("npu-smi", OK, "npu-smi", f"{smi.version}, {len(smi.chips)} chips", "a table", _SMI)
    hangs = "did not end" in smi.problem
    fix = (
        "A driver that does not answer hangs training, too: see dmesg, end what holds the devices, restart the node."
        if hangs
        else "In a container mount /usr/local/bin/npu-smi, /usr/local/dcmi and /usr/local/Ascend/driver."
    )
    state = RED if smi.place else UNKNOWN
    return DoctorLine("npu-smi", state, "npu-smi", smi.problem, "a table", _SMI, fix)


def _chips(host: HostDescription, wanted: WantedHost, kind: MachineKind) -> Iterator[DoctorLine]:
    chips = host.smi.chips
    if not chips:
        return
    ill = [
        f"NPU {chip.npu} chip {chip.number}: {chip.health}" for chip in chips if chip.health.upper() != "OK"
    ]
    yield DoctorLine(
        "health",
        RED if ill else OK,
        "health of the chips",
        _few(ill) or "OK",
        "OK",
        "npu-smi info -t health -i 0",
        "Print its error codes with npu-smi (npu-smi info -t err-count -i N), and take the node out."
        if ill
        else "",
    )
    sizes = sorted({chip.total for chip in chips if chip.total is not None})
    usual = kind.get("die_memory_mb")
    asked = wanted.die_memory_gb
    least = asked * _PER_GB if asked is not None and wanted.device == "npu" else None
    if sizes:
        who = f"{asked:g} GB (cluster.die_memory_gb of {wanted.recipe})" if least else ""
        small = least is not None and sizes[0] < least
        yield DoctorLine(
            "hbm",
            RED if small else OK if least or usual else NOTE,
            "memory of a die",
            " and ".join(f"{size} MB" for size in sizes),
            who or (f"{usual.value} MB ({usual.source})" if usual else ""),
            _SMI,
            "Set cluster.die_memory_gb to what the die has, and run npu-rl plan again." if small else "",
        )
    idle = kind.get("idle_memory_mb")
    if idle:
        held = [
            f"NPU {chip.npu} chip {chip.number}: {chip.used} MB"
            for chip in chips
            if chip.used is not None and chip.used > idle.value
        ]
        yield DoctorLine(
            "hbm-free",
            RED if held else OK,
            "memory in use",
            _few(held) or f"{max(chip.used or 0 for chip in chips)} MB at most",
            f"{idle.value} MB at most ({idle.source})",
            _SMI,
            "End the processes of the line holders. Where none is shown, one of another container holds it."
            if held
            else "",
        )


def _visible(host: HostDescription, wanted: WantedHost, npu: bool) -> DoctorLine:
    name = "ASCEND_RT_VISIBLE_DEVICES" if npu else "CUDA_VISIBLE_DEVICES"
    value = host.environ.get(name)
    have = host.facts["npus" if npu else "gpus"]
    need = wanted.dies or have
    want = f"unset, or {need} devices"
    seen = None if value is None else len([word for word in value.split(",") if word.strip()])
    short = seen is not None and seen < need
    return DoctorLine(
        "visible-devices",
        RED if short else OK,
        "visible devices",
        "unset" if value is None else f"{name}={value}",
        want,
        f"echo ${name}",
        f"unset {name}: Ray sets it for each worker." if short else "",
        stops=short and wanted.dies is not None,
    )


def _holders(host: HostDescription, npu: bool) -> DoctorLine:
    found = [
        f"pid {held.pid} ({held.name}) on {held.device}" + (f" of run {held.run}" if held.run else "")
        for held in host.holders
    ]
    fix = "End them, and wait 10 s before the next run (EJ0001 is such a process)." if found else ""
    command = "npu-smi info; fuser -v /dev/davinci*" if npu else "nvidia-smi; fuser -v /dev/nvidia*"
    none = "none" if host.all_processes else "none among those checked in time"
    state = RED if found else OK if host.all_processes else UNKNOWN
    return DoctorLine("holders", state, "processes on devices", _few(found) or none, "none", command, fix)


def _few(texts: list[str]) -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return "; ".join(texts[:_SHOWN]) + more
