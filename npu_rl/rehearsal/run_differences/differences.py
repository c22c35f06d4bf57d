"""Differences between a rehearsal and the run: interpreter, packages, device and device-dependent branches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.version import VERSION_PATTERN, Version

from npu_rl.common.bounded import parse_json, read_file
from npu_rl.common.interpreter import read_interpreter
from npu_rl.common.package_versions import fits, lacking_packages
from npu_rl.rehearsal.choose_levels import has_mindspeed
from npu_rl.rehearsal.executed_modules import executed_modules, file_of
from npu_rl.rehearsal.run_differences.device_branches import BranchFacts, DeviceBranch, device_branches
from npu_rl.training.host.vllm_environment import ENVIRONMENT as VLLM_ON_CPU
from npu_rl.training.run.prepare import Prepared

_EXECUTED = "executed-*.json"  # of npu_rl_weight_sync, among the usage counts
_PLAIN = re.compile(rf"\s*(?:==|>=|~=)?\s*({VERSION_PATTERN})", re.VERBOSE | re.IGNORECASE)
_VARIABLE_SHOWN = 40  # characters; a longer value has an entry per rank
_PACKAGES_SHOWN, _BRANCHES_SHOWN = 6, 12  # in the text report; --json has all


@dataclass(frozen=True)
class OtherVersion:
    """A package whose version in the rehearsal differs from the manifest's. `here` is None if it is missing."""

    name: str
    here: str | None
    wanted: str

    def text(self) -> str:
        """Return the package as text."""
        return f"{self.name} {self.here or 'not installed'} ({self.wanted})"


@dataclass(frozen=True)
class Differences:
    """Differences between a rehearsal and the run.

    Attributes:
        device: The run's device.
        versions: Python, torch and torch_npu as the manifest's host has them, and here.
        packages: Packages that the manifest pins otherwise.
        branches: Branches in executed and patched files that go another way in the run.
        variables: Environment variables that the rehearsal sets for vLLM's engine, and the recipe doesn't.
        executed: Whether the files are those that the training imported; else those that a step would import.
    """

    device: str
    versions: tuple[OtherVersion, ...] = ()
    packages: tuple[OtherVersion, ...] = ()
    branches: tuple[DeviceBranch, ...] = field(default=())
    variables: tuple[str, ...] = ()
    executed: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the differences as JSON types."""
        return {
            "device": self.device,
            "versions": [vars(one) for one in self.versions],
            "packages": [vars(one) for one in self.packages],
            "branches": [{**vars(one), "lines": one.lines and list(one.lines)} for one in self.branches],
            "variables": list(self.variables),
            "executed": self.executed,
        }

    def lines(self) -> list[str]:
        """Return the differences as lines of text."""
        lines = [one.text() for one in self.versions]
        if self.packages:
            shown = ", ".join(one.text() for one in self.packages[:_PACKAGES_SHOWN])
            lines.append(f"{len(self.packages)} packages: {shown}{_more(self.packages, _PACKAGES_SHOWN)}")
        lines += [f"device: cpu for {self.device}"] if self.device != "cpu" else []
        if self.variables:
            lines.append(f"variables: {', '.join(self.variables)}")
        if self.branches:
            files = (
                "executed and patched files"
                if self.executed
                else "patched files and those that a step imports"
            )
            count = "1 branch" if len(self.branches) == 1 else f"{len(self.branches)} branches"
            lines.append(f"{count} on the device or a version in {files}:")
            lines += [f"  {one.text()}" for one in self.branches[:_BRANCHES_SHOWN]]
            lines += [f"  and {len(self.branches) - _BRANCHES_SHOWN} more, with --json"] * (
                len(self.branches) > _BRANCHES_SHOWN
            )
        return lines


def differences(
    prepared: Prepared, patched: Iterable[str], usage: Iterable[Path], *, engine: bool
) -> Differences:
    """Return the differences.

    Args:
        patched: Files that the manifest's patches change, as paths in the tree.
        usage: Folders of usage counts of the rehearsal's trainings.
        engine: Whether vLLM's engine ran.
    """
    code, device = prepared.paths.code, prepared.recipe.device
    if device == "cpu":
        return Differences(device)
    found = read_interpreter(prepared.interpreter.path).packages
    imported = _imported_files(code, usage)
    named = (file_of(code, module) for module in executed_modules(code, prepared.recipe.trainer.module))
    files = imported or {str(file.relative_to(code)) for file in named if file}
    files |= {file for file in patched if file.endswith(".py") and (code / file).is_file()}
    return Differences(
        device,
        tuple(_versions(prepared, found)),
        tuple(_packages(prepared, found)),
        tuple(device_branches(code, files, *_branch_facts(prepared, found))),
        tuple(_variables(prepared)) if engine else (),
        executed=bool(imported),
    )


def _variables(prepared: Prepared) -> Iterator[str]:
    for name, value in VLLM_ON_CPU.items():
        if prepared.recipe.env.get(name) != value and len(value) <= _VARIABLE_SHOWN:
            yield f"{name}={value}"


def _branch_facts(prepared: Prepared, found: Mapping[str, str | None]) -> tuple[BranchFacts, BranchFacts]:
    """Return what branches depend on, in the rehearsal and in the run."""
    here = _known({"python": prepared.interpreter.version, "torch": found.get("torch")})
    wanted = _known(prepared.lock.host)
    both = here.keys() & wanted.keys()
    return (
        BranchFacts("cpu", {name: here[name] for name in both}, _missing(prepared)),
        BranchFacts(prepared.recipe.device, {name: wanted[name] for name in both}),
    )


def _missing(prepared: Prepared) -> frozenset[str]:
    """Return the packages of the run's device that no stand-in provides."""
    return (
        frozenset()
        if prepared.recipe.device != "npu" or has_mindspeed(prepared)
        else frozenset({"torch_npu"})
    )


def _known(versions: Mapping[str, str | None]) -> dict[str, Version]:
    """Return the versions that are known; of a range its lower bound (`>=3.11,<3.12`)."""
    known = {}
    for name, text in versions.items():
        found = _PLAIN.match(text or "")
        if found:
            known[name] = Version(found[1])
    return known


def _versions(prepared: Prepared, found: Mapping[str, str | None]) -> list[OtherVersion]:
    host, here = prepared.lock.host, prepared.interpreter
    versions = {"python": here.version, "torch": found.get("torch"), "torch_npu": None}
    return [
        OtherVersion(name, version, host[name])
        for name, version in versions.items()
        if name in host and not fits(version or "", host[name])
    ]


def _packages(prepared: Prepared, found: Mapping[str, str | None]) -> list[OtherVersion]:
    return [
        OtherVersion(wanted.name, version, str(wanted.specifier) or "any version")
        for wanted, version in lacking_packages(found, prepared.lock.requirements)
    ]


def _imported_files(code: Path, usage: Iterable[Path]) -> set[str]:
    """Return the files that the trainings' workers imported from the tree, as paths in the tree."""
    root = code.resolve()
    places: set[Path] = set()
    for file in (file for folder in usage for file in folder.glob(_EXECUTED)):
        try:
            places.update(Path(str(place)) for place in parse_json(read_file(file)))
        except ValueError:
            continue  # of a process that was killed
    return {str(place.relative_to(root)) for place in places if place.is_relative_to(root)}


def _more(every: tuple[OtherVersion, ...], shown: int) -> str:
    return f" and {len(every) - shown} more" if len(every) > shown else ""
