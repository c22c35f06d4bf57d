"""Lines on the training interpreter and its packages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from npu_rl.training.host.line import NOTE, OK, RED, UNKNOWN, DoctorLine
from npu_rl.training.host.machines import MachineKind
from npu_rl.training.host.training_python import TrainingPython
from npu_rl.training.host.wanted_host import WantedHost

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# Packages of `host` that stand in the interpreter; apex of Ascend is 0.1+ascend.
_HOST_PACKAGES = ("torchvision", "torchaudio", "triton_ascend", "apex", "transformer_engine", "cudnn")
_INSTALLED = ("torch", "torch_npu", "torchvision", "torchaudio", "triton_ascend")
_DISTRIBUTION = {"cudnn": "nvidia-cudnn-cu12"}
# Per device, packages that replace or break what its own bring, and who says so.
_FORBIDDEN = {
    "npu": (("triton", "transformer-engine", "flash-attn"), "verl#5468, vllm-ascend#11681"),
    "cuda": (("torch-npu", "triton-ascend"), "triton-ascend replaces triton: both are the module `triton`"),
}
_SHOWN = 8  # packages that a line names


def python_lines(
    python: TrainingPython, wanted: WantedHost, kind: MachineKind, device: str
) -> Iterator[DoctorLine]:
    """Yield the lines on an interpreter for training on npu, cuda or cpu."""
    npu = device == "npu"
    if python.problem:
        yield _unreadable(python, wanted)
        return
    yield _version(python, wanted)
    yield _torch(python, wanted, npu)
    if npu:
        yield _torch_npu(python, wanted)
        yield _pair(python)
        yield _forbidden(python, device)
        yield from _vllm_ascend(python, kind)
    elif device in _FORBIDDEN:
        yield _forbidden(python, device)
    for name in _HOST_PACKAGES:
        if name in wanted.versions:
            yield _host_package(python, wanted, name)
    yield _ray(python, wanted)
    yield _twice(python)
    if wanted.requirements:
        yield _requirements(python, wanted)


def _unreadable(python: TrainingPython, wanted: WantedHost) -> DoctorLine:
    named = python.path or "no interpreter"
    state = RED if python.path else UNKNOWN
    want = (
        f"Python {wanted.versions['python']} (manifest {wanted.manifest})"
        if "python" in wanted.versions
        else ""
    )
    return DoctorLine(
        "python", state, "training interpreter", f"{named}: {python.problem}", want,
        f"{python.path or 'python3'} --version",
        "If that command works, try again; else name another interpreter: --python P",
    )  # fmt: skip


def _version(python: TrainingPython, wanted: WantedHost) -> DoctorLine:
    asked = wanted.versions.get("python", "")
    want = f"{asked} (manifest {wanted.manifest})" if asked else ""
    fits = not asked or _in_range(python.version, asked)
    fix = "Make an environment with that Python, and name it: --python P" if not fits else ""
    return DoctorLine(
        "python", OK if fits else RED, "Python", f"{python.version} at {python.path}", want,
        f"{python.path} --version", fix,
    )  # fmt: skip


def _torch(python: TrainingPython, wanted: WantedHost, npu: bool) -> DoctorLine:
    found, asked = python.first("torch"), wanted.versions.get("torch")
    needed = bool(wanted.device) or npu
    return _package(python, "torch", found, asked, wanted, needed=needed)


def _torch_npu(python: TrainingPython, wanted: WantedHost) -> DoctorLine:
    return _package(
        python, "torch_npu", python.first("torch-npu"), wanted.versions.get("torch_npu"), wanted, needed=True
    )


def _host_package(python: TrainingPython, wanted: WantedHost, name: str) -> DoctorLine:
    distribution = _DISTRIBUTION.get(name, name.replace("_", "-"))
    return _package(python, name, python.first(distribution), wanted.versions[name], wanted, needed=True)


def _package(
    python: TrainingPython,
    name: str,
    found: str | None,
    asked: str | None,
    wanted: WantedHost,
    *,
    needed: bool,
) -> DoctorLine:
    want = f"{asked} (manifest {wanted.manifest})" if asked else ""
    command = f"{python.path} -m pip show {name}"
    wish = f"{name} {asked}" if asked else name
    if found is None:
        fix = _install_fix(name, wish, wanted) if needed else ""
        stops = needed and name in ("torch", "torch_npu") and wanted.device in ("npu", "cuda")
        return DoctorLine(name, RED if needed else NOTE, name, "not installed", want, command, fix, stops)
    if asked and not _same_public(found, asked):
        fix = f"Install {wish}, without dependencies."
        if name == "torch":
            fix += " vLLM's wheel replaces it: install vLLM with VLLM_TARGET_DEVICE=empty."
        return DoctorLine(name, RED, name, found, want, command, fix)
    return DoctorLine(name, OK, name, found, want, command)


def _install_fix(name: str, wish: str, wanted: WantedHost) -> str:
    named = {_canonical(_parsed(text).name) for text in wanted.requirements}
    if wanted.install and name in _INSTALLED and (name in wanted.versions or _canonical(name) in named):
        return wanted.install
    if wanted.device == "npu":
        return f"Install {wish} from the image or Ascend's own pages."
    return f"Install {wish}, without dependencies."


def _pair(python: TrainingPython) -> DoctorLine:
    torch, npu = python.first("torch"), python.first("torch-npu")
    command = f"{python.path} -m pip list | grep torch"
    want = "torch_npu's own version of torch (torch_npu requires torch== its own)"
    if torch is None or npu is None:
        return DoctorLine("torch-pair", UNKNOWN, "torch and torch_npu", "one is missing", want, command)
    same = _release(torch) == _release(npu)
    found = f"torch {torch}, torch_npu {npu}"
    fix = (
        f"Install torch {'.'.join(map(str, _release(npu)))}: torch_npu is compiled for it."
        if not same
        else ""
    )
    return DoctorLine(
        "torch-pair", OK if same else RED, "torch and torch_npu", found, want, command, fix, not same
    )


def _forbidden(python: TrainingPython, device: str) -> DoctorLine:
    names, source = _FORBIDDEN[device]
    red = [name for name in names if python.first(name)]
    there = [f"{name} {python.first(name)}" for name in red]
    nvidia = sorted(name for name in python.versions if name.startswith("nvidia-")) if device == "npu" else []
    if nvidia:
        there.append(f"{len(nvidia)} of NVIDIA's packages")
    own = "triton-ascend" if device == "npu" else "triton"
    fix = f"{python.path} -m pip uninstall {' '.join([*red, *nvidia])}; then install {own} again"
    return DoctorLine(
        "forbidden-packages", RED if red else NOTE if there else OK,
        "packages for GPUs" if device == "npu" else "packages for NPUs", ", ".join(there) or "none",
        f"none of {', '.join(names)} ({source})", f"{python.path} -m pip list", fix if there else "",
    )  # fmt: skip


def _vllm_ascend(python: TrainingPython, kind: MachineKind) -> Iterator[DoctorLine]:
    """Yield the lines on an installed vllm_ascend. A tree's own is built by npu-rl, and verified elsewhere."""
    there = python.vllm_ascend
    if there is None:
        return
    place, built_for = str(there["place"]), there["built_for"]
    command = f"ls {place}/vllm_ascend_C*.so; cat {place}/_build_info.py"
    yield DoctorLine(
        "vllm-ascend-kernels", OK if there["compiled"] else RED, "vllm_ascend's compiled module",
        "there" if there["compiled"] else f"no vllm_ascend_C*.so in {place}",
        "there (sleep mode: vllm-ascend#3998)", command,
        "" if there["compiled"] else "Build it with COMPILE_CUSTOM_KERNELS=1 where CANN is sourced.",
    )  # fmt: skip
    expected = kind.get("built_for")
    if expected and built_for is not None:
        fits = any(str(built_for).lower().startswith(name.lower()) for name in expected.value)
        yield DoctorLine(
            "vllm-ascend-soc", OK if fits else RED, "vllm_ascend is built for", str(built_for),
            f"{' or '.join(expected.value)} ({expected.source})", command,
            "" if fits else f"Build it again with SOC_VERSION of {kind.title}, or take the image for it.",
        )  # fmt: skip


def _ray(python: TrainingPython, wanted: WantedHost) -> DoctorLine:
    asked = next((text for text in wanted.requirements if _parsed(text).name == "ray"), "")
    found = python.first("ray")
    want = f"{asked} (manifest {wanted.manifest})" if asked else ""
    fits = found is not None and (not asked or _fits(found, _parsed(asked)))
    state = OK if fits else RED if asked else NOTE
    by_hand = f"Install it: {python.path} -m pip install --no-deps '{asked}'"
    fix = (wanted.install or by_hand) if state == RED else ""
    return DoctorLine(
        "ray", state, "Ray", found or "not installed", want, f"{python.path} -m pip show ray", fix
    )


def _twice(python: TrainingPython) -> DoctorLine:
    twice = {name: all_of for name, all_of in python.versions.items() if len(all_of) > 1}
    shown = [f"{name} {' and '.join(all_of)}" for name, all_of in sorted(twice.items())]
    different = any(len(set(all_of)) > 1 for all_of in twice.values())
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    fix = (
        "Uninstall both, and install one: which one is imported depends on the order of sys.path."
        if different
        else ""
    )
    return DoctorLine(
        "packages-twice", RED if different else NOTE if twice else OK, "packages installed twice",
        ", ".join(shown[:_SHOWN]) + more or "none", "none", f"{python.path} -m pip list -v", fix,
    )  # fmt: skip


def _requirements(python: TrainingPython, wanted: WantedHost) -> DoctorLine:
    lacking = []
    for text in wanted.requirements:
        requirement = _parsed(text)
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        found = python.first(_canonical(requirement.name))
        if found is None or not _fits(found, requirement):
            lacking.append(f"{text} ({'not installed' if found is None else f'{found} is installed'})")
    more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
    count = len(wanted.requirements)
    by_hand = f"Install what npu-rl requirements --manifest {wanted.manifest} prints, without dependencies."
    fix = (wanted.install or by_hand) if lacking else ""
    return DoctorLine(
        "requirements", RED if lacking else OK, "packages of the manifest",
        f"{len(lacking)} of {count} differ: {', '.join(lacking[:_SHOWN])}{more}" if lacking else f"all {count}",
        f"all {count} (manifest {wanted.manifest})", f"{python.path} -m pip list", fix,
    )  # fmt: skip


# -- versions of packages ------------------------------------------------------------------------------


def _parsed(text: str) -> Requirement:
    from packaging.requirements import Requirement

    return Requirement(text)


def _canonical(name: str) -> str:
    from packaging.utils import canonicalize_name

    return canonicalize_name(name)


def _fits(found: str, requirement: Requirement) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        public = Version(found).public
    except InvalidVersion:
        public = found
    return not requirement.specifier or requirement.specifier.contains(public, prereleases=True)


def _in_range(version: str, asked: str) -> bool:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        specifiers = SpecifierSet(asked)
    except InvalidSpecifier:
        return version.startswith(asked)
    # Below a folder only 3.11 is known, of which >=3.11.5 can't be told.
    full = version if version.count(".") > 1 else f"{version}.99"
    return specifiers.contains(full, prereleases=True)


def _same_public(found: str, asked: str) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(found).public == Version(asked).public
    except InvalidVersion:
        return found == asked


def _release(version: str) -> tuple[int, ...]:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version).release
    except InvalidVersion:
        return ()
