"""Lines on driver, firmware, CANN and NNAL, and on the shell's variables for them."""

from __future__ import annotations

from collections.abc import Iterator

from npu_rl.training.host.describe_host import LIBRARIES, HostDescription
from npu_rl.training.host.line import NOTE, OK, RED, UNKNOWN, DoctorLine
from npu_rl.training.host.machines import MachineKind
from npu_rl.training.host.set_env import CANN, SetEnv, lacking
from npu_rl.training.host.version_order import is_older, same_version
from npu_rl.training.host.wanted_host import WantedHost

_SHOWN = 8  # variables that a line names


def stack_lines(host: HostDescription, wanted: WantedHost, kind: MachineKind) -> Iterator[DoctorLine]:
    """Yield the lines on Ascend's stack of a host."""
    yield _at_least(host, wanted, "driver", "driver")
    yield _at_least(host, wanted, "firmware", "firmware")
    toolkit = host.facts["cann"]
    yield _exactly(host, "cann", "CANN toolkit", *_wish(wanted, "cann", None))
    yield _exactly(host, "kernels", "CANN kernels", *_wish(wanted, "kernels", toolkit))
    yield from _kernels_for(host, kind)
    yield _exactly(host, "nnal", "NNAL (ATB)", *_wish(wanted, "nnal", toolkit))
    for script in host.set_env:
        yield _set_env(host, script)
    yield _libraries(host)


def gpu_stack_lines(host: HostDescription, wanted: WantedHost) -> Iterator[DoctorLine]:
    """Yield the lines on NVIDIA's stack of a host."""
    yield _at_least(host, wanted, "gpu_driver", "driver")
    found, asked = host.facts["cuda"], wanted.versions.get("cuda")
    want = f"{asked} (manifest {wanted.manifest})" if asked else ""
    # The manifest names 12.6, the file 12.6.3; torch brings its own, so another toolkit is a note.
    same = found is not None and asked is not None and f"{found}.".startswith(f"{asked}.")
    state = OK if same or not asked else UNKNOWN if found is None else NOTE
    fix = (
        "torch brings its own CUDA libraries; the toolkit matters for what is compiled here."
        if state == NOTE
        else ""
    )
    yield DoctorLine(
        "cuda", state, "CUDA toolkit", found or "not found", want, "cat /usr/local/cuda/version.json", fix
    )


def _wish(wanted: WantedHost, name: str, toolkit: str | None) -> tuple[str | None, str]:
    """Return a wanted version and its origin: the manifest, or else the toolkit."""
    asked = wanted.versions.get(name)
    if asked:
        return asked, f"manifest {wanted.manifest}"
    return toolkit, "the toolkit's"


def _at_least(host: HostDescription, wanted: WantedHost, fact: str, what: str) -> DoctorLine:
    """Return the line on a minimum version that the stack requires of the host."""
    name = "driver" if fact == "gpu_driver" else fact
    found, asked = host.facts[fact], wanted.versions.get(name)
    want = f"{asked} or newer (manifest {wanted.manifest})" if asked else ""
    command = f"cat {host.files[fact]}"
    if found is None:
        fix = f"Install the {what}; in a container mount {host.files[fact]}." if asked else ""
        return DoctorLine(name, UNKNOWN, what, "not found", want, command, fix)
    older = is_older(found, asked) if asked else False
    if older:
        return DoctorLine(
            name, RED, what, found, want, command, f"Install {what} {asked} on the host, and restart it."
        )
    if asked and not same_version(found, asked):
        return DoctorLine(
            name, NOTE, what, found, want, command, "Newer than the stack's; it is not known whether it fits."
        )
    return DoctorLine(name, OK, what, found, want, command)


def _exactly(host: HostDescription, name: str, what: str, asked: str | None, who: str) -> DoctorLine:
    found = host.facts[name]
    want = f"{asked} ({who})" if asked else ""
    command = f"cat {host.files[name] or '/usr/local/Ascend/ascend-toolkit/latest/opp_kernel/version.info'}"
    if found is None:
        needed = name in ("cann", "nnal") and bool(asked)
        # From CANN 8.5 on the kernels' version stands elsewhere; kernels-for looks at their folders.
        state = RED if needed else UNKNOWN
        fix = f"Install {what} {asked}, or use the image of the manifest." if needed else ""
        return DoctorLine(name, state, what, "not found", want, command, fix)
    if asked and not same_version(found, asked):
        fix = f"Install {what} {asked}: other versions of its operators and of torch_npu don't go together."
        return DoctorLine(name, RED, what, found, want, command, fix)
    return DoctorLine(name, OK, what, found, want, command)


def _kernels_for(host: HostDescription, kind: MachineKind) -> Iterator[DoctorLine]:
    expected = kind.get("kernels")
    if expected is None or host.facts["cann"] is None:
        return
    there = expected.value in host.kernels_for
    command = "ls $ASCEND_HOME_PATH/opp/built-in/op_impl/ai_core/tbe/kernel"
    want = f"{expected.value} ({expected.source})"
    if not host.kernels_for:
        yield DoctorLine("kernels-for", RED, "kernels for this SoC", "none", want, command, _kernel_fix(kind))
    else:
        found = ", ".join(host.kernels_for)
        fix = "" if there else _kernel_fix(kind)
        yield DoctorLine(
            "kernels-for", OK if there else RED, "kernels for this SoC", found, want, command, fix
        )


def _kernel_fix(kind: MachineKind) -> str:
    return f"Install the CANN kernels package of {kind.title}, of the toolkit's version."


def _set_env(host: HostDescription, script: SetEnv) -> DoctorLine:
    part = script.part
    identity, what = f"set-env-{part.lower()}", f"{part}'s set_env.sh"
    command = f"source {script.place}; env"
    want = "sourced in this shell"
    if script.missing:
        state = RED if host.facts["cann"] or part == CANN else UNKNOWN
        fix = f"Install {'the CANN toolkit' if part == CANN else 'NNAL, which has libatb.so'}."
        return DoctorLine(identity, state, what, f"{script.place} is missing", want, command, fix)
    if script.problem:
        fix = "Read the script: it must set variables and return, without any question. Reinstall it if it was edited."
        return DoctorLine(identity, RED, what, f"{script.place}: {script.problem}", want, command, fix)
    differ = lacking(script, host.environ)
    if differ:
        more = f" and {len(differ) - _SHOWN} more" if len(differ) > _SHOWN else ""
        found = f"this shell lacks {', '.join(differ[:_SHOWN])}{more}"
        fix = f"source {script.place}, in the shell that starts Ray on each node, too."
        return DoctorLine(identity, RED, what, found, want, command, fix)
    return DoctorLine(identity, OK, what, f"{script.place} is sourced", want, command)


def _libraries(host: HostDescription) -> DoctorLine:
    missing = [f"{name} ({LIBRARIES[name]})" for name, place in host.libraries.items() if place is None]
    return DoctorLine(
        "libraries",
        RED if missing else OK,
        "libraries that the loader finds",
        f"missing: {', '.join(missing)}" if missing else ", ".join(LIBRARIES),
        "all, in a folder of LD_LIBRARY_PATH",
        "echo $LD_LIBRARY_PATH | tr : '\\n'",
        "Source both set_env.sh; in a container mount /usr/local/Ascend/driver." if missing else "",
    )
