"""Lines on the machine: its kind, devices, memory, and the processes that hold devices."""

from __future__ import annotations

from collections.abc import Iterator

from npu_rl.training.host.describe_host import HostDescription
from npu_rl.training.host.line import NOTE, RED, UNKNOWN, DoctorLine, shortened
from npu_rl.training.host.machines import MachineKind, machine_kind
from npu_rl.training.host.wanted_host import WantedHost

_SMI = "npu-smi info"
_PER_GB = 1e9 / (1 << 20)  # npu-smi's MB in 10^9 bytes


def device_lines(
    host: HostDescription, wanted: WantedHost, kind: MachineKind, device: str
) -> Iterator[DoctorLine]:
    """Yield the lines on devices, for a host that has devices or should have. device: npu, cuda or cpu."""
    yield _machine(host, wanted, kind, device)
    if device == "cpu":
        return
    yield _count(host, wanted, kind, npu=device == "npu")
    if device == "npu":
        yield _control_files(host)
        yield _npu_smi(host)
        yield from _chips(host, wanted, kind)
    yield _visible(host, wanted, device)


def _machine(host: HostDescription, wanted: WantedHost, kind: MachineKind, device: str) -> DoctorLine:
    asked = machine_kind(wanted.kind).title if wanted.kind else ""
    state = fix = ""
    if host.kind == "950":
        state, fix = NOTE, f"npu-rl's values are unproven: {kind.unproven}"
    elif wanted.kind not in ("", "cpu", host.kind):
        if host.kind == device == "npu":
            state = UNKNOWN
        fix = (
            "Set cluster.dies, dies_per_card and die_memory_gb for this machine, and run npu-rl plan again."
            if host.kind in ("a2", "a3") and device == "npu"
            else f"Run it where there is {asked}, or rehearse it here: npu-rl train {wanted.recipe} --rehearse"
        )
    want = f"{asked} (recipe {wanted.recipe})" if asked else ""
    found = machine_kind(host.kind).title
    return DoctorLine("machine", "machine", found, want, f"{_SMI}; ls /dev/davinci* /dev/nvidia*", fix, state)


def _count(host: HostDescription, wanted: WantedHost, kind: MachineKind, *, npu: bool) -> DoctorLine:
    name, found = ("davinci", host.facts["npus"]) if npu else ("nvidia", host.facts["gpus"])
    usual = kind.get("devices")
    counts, who = (usual.value, usual.source) if usual else ([], "")
    if wanted.dies is not None:
        counts, who = [wanted.dies], f"cluster.dies of {wanted.recipe}"
    text = f"{found} of /dev/{name}N"
    tabled = len(host.smi.chips)
    if npu and tabled and tabled != found:
        text += f", {tabled} in npu-smi's table"
    fewest = min(found, tabled) if npu and tabled else found
    # A recipe may use fewer dies than the host has; a kind of machine has all of its own.
    short = fewest < counts[0] if wanted.dies is not None else bool(counts) and fewest not in counts
    fix = (
        f"Pass every device to the container (--device /dev/{name}0 ...). Missing on the host, too: see dmesg, "
        "and take the node out."
    )
    # A container with some of the host's devices may see all of them in the table.
    red = short or (npu and 0 < tabled < found)
    want = f"{' or '.join(map(str, counts))} ({who})" if counts else ""
    command = f"ls /dev/{name}*; {_SMI if npu else 'nvidia-smi -L'}"
    state = RED if red else "" if counts else NOTE
    stops = short and wanted.dies is not None
    return DoctorLine("devices", "devices", text, want, command, fix if red else "", state, stops)


def _control_files(host: HostDescription) -> DoctorLine:
    missing = [f"/dev/{name}" for name in host.facts["control_missing"]]
    return DoctorLine(
        "device-files",
        "device files",
        f"missing: {' '.join(missing)}" if missing else "davinci_manager, devmm_svm, hisi_hdc",
        "all three (docker run of vllm-ascend's and the stacks' documents)",
        "ls /dev/davinci_manager /dev/devmm_svm /dev/hisi_hdc",
        "Start the container with --device for each of them." if missing else "",
    )


def _npu_smi(host: HostDescription) -> DoctorLine:
    smi = host.smi
    if not smi.problem:
        return DoctorLine("npu-smi", "npu-smi", f"{smi.version}, {len(smi.chips)} chips", "a table", _SMI)
    fix = "In a container mount /usr/local/bin/npu-smi, /usr/local/dcmi and /usr/local/Ascend/driver."
    if "did not end" in smi.problem:
        fix = "A driver that does not answer hangs training, too: see dmesg, end its processes, restart the node."
    return DoctorLine("npu-smi", "npu-smi", smi.problem, "a table", _SMI, fix, RED if smi.place else UNKNOWN)


def _chips(host: HostDescription, wanted: WantedHost, kind: MachineKind) -> Iterator[DoctorLine]:
    chips = host.smi.chips
    if not chips:
        return
    ill = [f"{chip}: {chip.health}" for chip in chips if chip.health.upper() != "OK"]
    errors = "Print its error codes with npu-smi (npu-smi info -t err-count -i N), and take the node out."
    health = "npu-smi info -t health -i 0"
    yield DoctorLine(
        "health", "health of the chips", shortened(ill) or "OK", "OK", health, errors if ill else ""
    )
    sizes = sorted({chip.total for chip in chips if chip.total is not None})
    usual, asked = kind.get("die_memory_mb"), wanted.die_memory_gb
    if sizes:
        want = f"{usual.value} MB ({usual.source})" if usual else ""
        small = False
        if asked is not None:
            want, small = (
                f"{asked:g} GB (cluster.die_memory_gb of {wanted.recipe})",
                sizes[0] < asked * _PER_GB,
            )
        found = " and ".join(f"{size} MB" for size in sizes)
        fix = "Set cluster.die_memory_gb to what the die has, and run npu-rl plan again." if small else ""
        yield DoctorLine("hbm", "memory of a die", found, want, _SMI, fix, "" if want else NOTE)
    idle = kind.get("idle_memory_mb")
    if idle:
        held = [f"{chip}: {chip.used} MB" for chip in chips if (chip.used or 0) > idle.value]
        found = shortened(held) or f"{max(chip.used or 0 for chip in chips)} MB at most"
        fix = "End the processes of the line holders. Where none is shown, one of another container holds it."
        want = f"{idle.value} MB at most ({idle.source})"
        yield DoctorLine("hbm-free", "memory in use", found, want, _SMI, fix if held else "")
    holders = list(host.smi.processes)
    fix = "End them, and wait 10 s before the next run (EJ0001 is such a process)." if holders else ""
    yield DoctorLine("holders", "processes on devices", shortened(holders) or "none", "none", _SMI, fix)


def _visible(host: HostDescription, wanted: WantedHost, device: str) -> DoctorLine:
    name = "ASCEND_RT_VISIBLE_DEVICES" if device == "npu" else "CUDA_VISIBLE_DEVICES"
    value = host.environ.get(name)
    need = wanted.dies or host.facts["npus" if device == "npu" else "gpus"]
    short = value is not None and len([word for word in value.split(",") if word.strip()]) < need
    return DoctorLine(
        "visible-devices",
        "visible devices",
        "unset" if value is None else f"{name}={value}",
        f"unset, or {need} devices",
        f"echo ${name}",
        f"unset {name}: Ray sets it for each worker." if short else "",
        stops=short and wanted.dies is not None,
    )
