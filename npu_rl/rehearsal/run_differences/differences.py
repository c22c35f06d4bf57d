"""Differences between a rehearsal and the run: versions of the host's and the manifest's packages, and the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from npu_rl.common.interpreter import read_interpreter
from npu_rl.common.package_versions import fits, lacking_packages
from npu_rl.training.host.vllm_environment import ENVIRONMENT as VLLM_ON_CPU
from npu_rl.training.run.prepare import Prepared

_VARIABLE_SHOWN = 40  # characters; a longer value has an entry per rank
_PACKAGES_SHOWN = 6  # in the text report; --json has all


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
        variables: Environment variables that the rehearsal sets for vLLM's engine, and the recipe doesn't.
    """

    device: str
    versions: tuple[OtherVersion, ...] = ()
    packages: tuple[OtherVersion, ...] = ()
    variables: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the differences as lines of text."""
        lines = [one.text() for one in self.versions]
        if self.packages:
            shown = [one.text() for one in self.packages[:_PACKAGES_SHOWN]]
            more = len(self.packages) - len(shown)
            lines.append(
                f"{len(self.packages)} packages: {', '.join(shown)}{f' and {more} more' if more else ''}"
            )
        lines += [f"device: cpu for {self.device}"] if self.device != "cpu" else []
        lines += [f"variables: {', '.join(self.variables)}"] if self.variables else []
        return lines


def differences(prepared: Prepared, *, engine: bool) -> Differences:
    """Return the differences.

    Args:
        engine: Whether vLLM's engine ran.
    """
    device, lock = prepared.recipe.device, prepared.lock
    if device == "cpu":
        return Differences(device)
    found = read_interpreter(prepared.interpreter.path).packages
    packages = lacking_packages(found, lock.requirements)
    return Differences(
        device,
        tuple(_versions(prepared, found)),
        tuple(
            OtherVersion(wanted.name, version, str(wanted.specifier) or "any version")
            for wanted, version in packages
        ),
        tuple(_variables(prepared)) if engine else (),
    )


def _versions(prepared: Prepared, found: Mapping[str, str]) -> Iterator[OtherVersion]:
    host, here = prepared.lock.host, prepared.interpreter.version
    for name, version in {"python": here, "torch": found.get("torch"), "torch_npu": None}.items():
        if name in host and not fits(version or "", host[name]):
            yield OtherVersion(name, version, host[name])


def _variables(prepared: Prepared) -> Iterator[str]:
    for name, value in VLLM_ON_CPU.items():
        if prepared.recipe.env.get(name) != value and len(value) <= _VARIABLE_SHOWN:
            yield f"{name}={value}"
