"""Lines on the training interpreter and its packages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from npu_rl.common.interpreter import Interpreter
from npu_rl.common.package_versions import fits, lacking_packages
from npu_rl.training.host.line import NOTE, UNKNOWN, DoctorLine, shortened
from npu_rl.training.host.machines import MachineKind
from npu_rl.training.host.wanted_host import WantedHost

# Packages of `host` that stand in the interpreter, with their names there; apex of Ascend is 0.1+ascend.
_HOST_PACKAGES = {
    "torch": "torch",
    "torch_npu": "torch-npu",
    "torchvision": "torchvision",
    "torchaudio": "torchaudio",
    "triton_ascend": "triton-ascend",
    "apex": "apex",
    "transformer_engine": "transformer-engine",
    "cudnn": "nvidia-cudnn-cu12",
}
_FROM_FILES = (
    "apex",
    "transformer_engine",
    "cudnn",
)  # which setup --install brings only from named files, or not
# Per device, packages that replace or break what its own bring, and who says so.
_FORBIDDEN = {
    "npu": (("triton", "transformer-engine", "flash-attn"), "verl#5468, vllm-ascend#11681"),
    "cuda": (("torch-npu", "triton-ascend"), "triton-ascend replaces triton: both are the module `triton`"),
}


def python_lines(
    python: Interpreter, wanted: WantedHost, kind: MachineKind, device: str
) -> Iterator[DoctorLine]:
    """Yield the lines on an interpreter for training on npu, cuda or cpu."""
    yield _python(python, wanted)
    if python.problem:
        return
    needed = ["torch", *(["torch_npu"] if device == "npu" else [])]
    for name in dict.fromkeys([*needed, *(name for name in _HOST_PACKAGES if name in wanted.versions)]):
        yield _host_package(python, wanted, name, device)
    if device == "npu":
        yield _pair(python)
        yield from _vllm_ascend(python, kind)
    if device in _FORBIDDEN:
        yield _forbidden(python, device)
    if wanted.requirements:
        yield _requirements(python, wanted)


def _python(python: Interpreter, wanted: WantedHost) -> DoctorLine:
    from npu_rl.stack.requirements.environments import python_range

    asked, fix = python_range(wanted.versions.get("python")), ""
    if python.problem:
        fix = "If that command works, try again; else name another interpreter: --python P"
    elif asked is not None and not fits(python.version, str(asked)):
        fix = "Make an environment with that Python, and name it: --python P"
    found = f"{python.path}: {python.problem}" if python.problem else f"{python.version} at {python.path}"
    return DoctorLine(
        "python", "Python", found, wanted.of_manifest("python"), f"{python.path} --version", fix
    )


def _host_package(python: Interpreter, wanted: WantedHost, name: str, device: str) -> DoctorLine:
    found, asked = python.packages.get(_HOST_PACKAGES[name]), wanted.versions.get(name, "")
    wish = f"{name} {asked}".strip()
    state = fix = ""
    if found is None and not (wanted.device or device == "npu"):
        state = NOTE
    elif found is None:
        source = "from the image or Ascend's own pages" if device == "npu" else "without dependencies"
        by_hand = f"Install {wish} {source}."
        fix = by_hand if name in _FROM_FILES else wanted.install or by_hand
    elif not fits(found, asked):
        fix = f"Install {wish}, without dependencies."
        if name == "torch":
            fix += " vLLM's wheel replaces it: install vLLM with VLLM_TARGET_DEVICE=empty."
    stops = found is None and bool(fix) and name in ("torch", "torch_npu") and device != "cpu"
    want, command = wanted.of_manifest(name), f"{python.path} -m pip show {name}"
    return DoctorLine(name, name, found or "not installed", want, command, fix, state, stops)


def _pair(python: Interpreter) -> DoctorLine:
    torch, npu = python.packages.get("torch"), python.packages.get("torch-npu")
    want = "torch_npu's own version of torch (torch_npu requires torch== its own)"
    line = partial(DoctorLine, "torch-pair", "torch and torch_npu")
    command = f"{python.path} -m pip list | grep torch"
    if torch is None or npu is None:
        return line("one is missing", want, command, state=UNKNOWN)
    own = re.split(r"[.]?[a-z+]", npu, maxsplit=1)[0]
    fix = "" if fits(torch, own) else f"Install torch {own}: torch_npu is compiled for it."
    return line(f"torch {torch}, torch_npu {npu}", want, command, fix, stops=bool(fix))


def _forbidden(python: Interpreter, device: str) -> DoctorLine:
    names, source = _FORBIDDEN[device]
    found = [name for name in names if name in python.packages]
    own, what = ("triton-ascend", "packages for GPUs") if device == "npu" else ("triton", "packages for NPUs")
    fix = f"{python.path} -m pip uninstall {' '.join(found)}; then install {own} again" if found else ""
    shown = ", ".join(f"{name} {python.packages[name]}" for name in found) or "none"
    want, command = f"none of {', '.join(names)} ({source})", f"{python.path} -m pip list"
    return DoctorLine("forbidden-packages", what, shown, want, command, fix)


def _vllm_ascend(python: Interpreter, kind: MachineKind) -> Iterator[DoctorLine]:
    """Yield the lines on an installed vllm_ascend. A tree's own is built by npu-rl, and verified elsewhere."""
    there = python.vllm_ascend
    if there is None:
        return
    place, built_for = str(there["place"]), there["built_for"]
    command = f"ls {place}/vllm_ascend_C*.so; cat {place}/_build_info.py"
    yield DoctorLine(
        "vllm-ascend-kernels",
        "vllm_ascend's compiled module",
        "there" if there["compiled"] else f"no vllm_ascend_C*.so in {place}",
        "there (sleep mode: vllm-ascend#3998)",
        command,
        "" if there["compiled"] else "Build it with COMPILE_CUSTOM_KERNELS=1 where CANN is sourced.",
    )
    expected = kind.get("built_for")
    if expected and built_for is not None:
        right = any(str(built_for).lower().startswith(name.lower()) for name in expected.value)
        want = f"{' or '.join(expected.value)} ({expected.source})"
        fix = "" if right else f"Build it again with SOC_VERSION of {kind.title}, or take the image for it."
        yield DoctorLine("vllm-ascend-soc", "vllm_ascend is built for", str(built_for), want, command, fix)


def _requirements(python: Interpreter, wanted: WantedHost) -> DoctorLine:
    lacking = lacking_packages(python.packages, wanted.requirements)
    shown = [f"{text} ({f'{found} is installed' if found else 'not installed'})" for text, found in lacking]
    count = len(wanted.requirements)
    by_hand = f"Install what npu-rl requirements --manifest {wanted.manifest} prints, without dependencies."
    return DoctorLine(
        "requirements",
        "packages of the manifest",
        f"{len(lacking)} of {count} differ: {shortened(shown)}" if lacking else f"all {count}",
        f"all {count} (manifest {wanted.manifest})",
        f"{python.path} -m pip list",
        (wanted.install or by_hand) if lacking else "",
    )
