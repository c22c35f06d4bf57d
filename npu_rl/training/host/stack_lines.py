"""Lines on driver, firmware, CANN and NNAL, and on the shell's variables for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from npu_rl.common.package_versions import is_older
from npu_rl.training.host.describe_host import HostDescription
from npu_rl.training.host.line import NOTE, RED, UNKNOWN, DoctorLine
from npu_rl.training.host.machines import MachineKind
from npu_rl.training.host.wanted_host import WantedHost
from npu_rl.training.injected.npu_rl_host import below, entries, read_text, toolkit_homes

# What torch_npu and vllm_ascend load, and what brings it.
_LIBRARIES = {
    "libascendcl.so": "CANN",
    "libhccl.so": "CANN",
    "libatb.so": "NNAL",
    "libascend_hal.so": "the driver",
}
# Kernels of a SoC below opp; their names are those of vllm-ascend's builds and of CANN's own folders.
_KERNELS = "opp/built-in/op_impl/ai_core/tbe/kernel"
# Each set_env.sh, and the variable that it sets to its installation.
_SCRIPTS = {
    "CANN": ("ASCEND_HOME_PATH", ("ascend-toolkit", "cann")),
    "NNAL": ("ATB_HOME_PATH", ("nnal/atb",)),
}


def stack_lines(host: HostDescription, wanted: WantedHost, kind: MachineKind) -> Iterator[DoctorLine]:
    """Yield the lines on Ascend's stack of a host."""
    yield _at_least(host, wanted, "driver")
    yield _at_least(host, wanted, "firmware")
    yield _exactly(host, wanted, "cann", "CANN toolkit")
    yield _exactly(host, wanted, "kernels", "CANN kernels")
    yield from _kernels_for(host, kind)
    yield _exactly(host, wanted, "nnal", "NNAL (ATB)")
    yield from (_set_env(host, part) for part in _SCRIPTS)
    yield _libraries(host)


def gpu_stack_lines(host: HostDescription, wanted: WantedHost) -> Iterator[DoctorLine]:
    """Yield the lines on NVIDIA's stack of a host. torch brings its own CUDA, so another toolkit is only noted."""
    yield _at_least(host, wanted, "gpu_driver")
    found, want = host.facts["cuda"], wanted.of_manifest("cuda")
    same = f"{found}.".startswith(f"{wanted.versions.get('cuda', found)}.")  # 12.6, and 12.6.3 in the file
    state = "" if same else NOTE if found else UNKNOWN
    command = "cat /usr/local/cuda/version.json"
    yield DoctorLine("cuda", "CUDA toolkit", found or "not found", want, command, state=state)


def _at_least(host: HostDescription, wanted: WantedHost, fact: str) -> DoctorLine:
    """Return the line on a minimum version that the stack requires of the host."""
    name = fact.removeprefix("gpu_")
    found, asked = host.facts[fact], wanted.versions.get(name)
    state = fix = ""
    if found is None:
        fix = f"Install the {name}; in a container mount {host.files[fact]}." if asked else ""
        state = UNKNOWN
    elif asked and is_older(found, asked):
        fix = f"Install {name} {asked} on the host, and restart it."
    elif asked and found.lower() != asked.lower():
        state, fix = NOTE, "Newer than the stack's; it is not known whether it fits."
    want = f"{asked} or newer (manifest {wanted.manifest})" if asked else ""
    return DoctorLine(name, name, found or "not found", want, f"cat {host.files[fact]}", fix, state)


def _exactly(host: HostDescription, wanted: WantedHost, name: str, what: str) -> DoctorLine:
    """Return the line on a part of CANN, whose version is the manifest's, or else the toolkit's."""
    found, asked = host.facts[name], wanted.versions.get(name)
    want = wanted.of_manifest(name)
    if not asked and name != "cann" and (asked := host.facts["cann"]):
        want = f"{asked} (the toolkit's)"
    command = f"cat {host.files[name] or '/usr/local/Ascend/ascend-toolkit/latest/opp_kernel/version.info'}"
    state, fix = "", ""
    if found is None:
        # From CANN 8.5 on the kernels' version stands elsewhere; kernels-for looks at their folders.
        needed = name in ("cann", "nnal") and bool(asked)
        state = RED if needed else UNKNOWN
        fix = f"Install {what} {asked}, or use the image of the manifest." if needed else ""
    elif asked and found.lower() != asked.lower():
        fix = f"Install {what} {asked}: other versions of its operators and of torch_npu don't go together."
    return DoctorLine(name, what, found or "not found", want, command, fix, state)


def _kernels_for(host: HostDescription, kind: MachineKind) -> Iterator[DoctorLine]:
    expected = kind.get("kernels")
    if expected is None or host.facts["cann"] is None:
        return
    home = toolkit_homes(host.root, host.environ)[0]
    names = [name for name in entries(host.root, f"{home}/{_KERNELS}") if name.startswith("ascend")]
    fix = f"Install the CANN kernels package of {kind.title}, of the toolkit's version."
    yield DoctorLine(
        "kernels-for",
        "kernels for this SoC",
        ", ".join(names) or "none",
        f"{expected.value} ({expected.source})",
        f"ls $ASCEND_HOME_PATH/{_KERNELS}",
        "" if expected.value in names else fix,
    )


def _set_env(host: HostDescription, part: str) -> DoctorLine:
    """Return the line on a set_env.sh, which is sourced where its variable names a folder that is there."""
    variable, folders = _SCRIPTS[part]
    value = host.environ.get(variable, "")
    scripts = [f"/usr/local/Ascend/{folder}/set_env.sh" for folder in folders]
    script = next(filter(host.has, scripts), None)
    state = fix = ""
    if not value.startswith("/") or not Path(below(host.root, value)).is_dir():
        fix = f"source {script or scripts[0]}, in the shell that starts Ray on each node, too."
        if script is None:
            fix = (
                f"Install {'the CANN toolkit' if part == 'CANN' else 'NNAL, which has libatb.so'}, and {fix}"
            )
            state = RED if host.facts["cann"] or part == "CANN" else UNKNOWN
    want = f"sourced: {variable} is its folder"
    found = f"{variable}={value}" if value else f"{variable} is unset"
    return DoctorLine(
        f"set-env-{part.lower()}", f"{part}'s set_env.sh", found, want, f"echo ${variable}", fix, state
    )


def _libraries(host: HostDescription) -> DoctorLine:
    configured = [
        line.strip()
        for conf in entries(host.root, "/etc/ld.so.conf.d")
        for line in read_text(host.root, f"/etc/ld.so.conf.d/{conf}").splitlines()
    ]
    folders = [*host.environ.get("LD_LIBRARY_PATH", "").split(":"), *configured]
    there = [folder for folder in folders if folder.startswith("/")]
    missing = [
        f"{name} ({part})"
        for name, part in _LIBRARIES.items()
        if not any(host.has(f"{folder}/{name}") for folder in there)
    ]
    return DoctorLine(
        "libraries",
        "libraries that the loader finds",
        f"missing: {', '.join(missing)}" if missing else ", ".join(_LIBRARIES),
        "all, in a folder of LD_LIBRARY_PATH",
        "echo $LD_LIBRARY_PATH | tr : '\\n'",
        "Source both set_env.sh; in a container mount /usr/local/Ascend/driver." if missing else "",
    )
