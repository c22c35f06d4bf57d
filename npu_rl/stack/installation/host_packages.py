"""The packages that belong to the host: kept where present, else from a named wheel or an index."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from npu_rl.common.errors import HostError
from npu_rl.common.package_versions import fits
from npu_rl.stack.installation.named_wheels import NamedWheel, choose_wheel
from npu_rl.stack.requirements.host_requirements import host_requirements, pinned_version
from npu_rl.stack.sources.pip_config import TORCH_FOR_CPUS

if TYPE_CHECKING:
    from npu_rl.stack.manifest.load_manifest import LoadedManifest

NAME_THEIR_SOURCE = (
    "Name their wheels: --wheels DIR, or --wheels FILE for each\n"
    "or the index that has them: pip config set global.extra-index-url URL\n"
    f"torch for CPUs, which torch_npu is made for, is in PyTorch's: {TORCH_FOR_CPUS}"
)
_BUILT_FOR_CUDA = ("torch", "torchvision", "torchaudio")
_CANN_VARIABLES = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")
_CANN_FOLDERS = ("usr/local/Ascend/ascend-toolkit", "usr/local/Ascend/cann")


@dataclass(frozen=True)
class HostPackage:
    """A package that belongs to the host.

    Attributes:
        wanted: The manifest's version; "" if it names no version.
        present: The version that is kept.
        wheel: The file to install it from; None for an index.
        left: The reason why it is not installed.
    """

    name: str
    wanted: str
    present: str = ""
    wheel: NamedWheel | None = None
    left: str = ""

    @property
    def version(self) -> str:
        """The version to install; empty if it is kept or left."""
        return "" if self.present or self.left else self.wheel.version if self.wheel else self.wanted

    def requirement(self) -> str:
        """Return the line of a requirements file."""
        return f"{self.name} @ {self.wheel.path.as_uri()}" if self.wheel else f"{self.name}=={self.wanted}"

    def note(self) -> str:
        """Return a note for the user; empty if all is as wanted."""
        if self.left:
            return f"{self.name} {self.wanted}".strip() + f" is not installed: {self.left}"
        if self.present and self.wanted and not fits(self.present, self.wanted):
            return f"{self.name} {self.present} is kept as the host's; the manifest wants {self.wanted}"
        return ""


def host_packages(
    loaded: LoadedManifest,
    installed: Mapping[str, str],
    wheels: Sequence[NamedWheel],
    root: Path = Path("/"),
) -> tuple[HostPackage, ...]:
    """Return the packages that a manifest leaves to its host, and where each comes from.

    Args:
        installed: Versions by name.
        root: Folder below which CANN is looked for.

    Raises:
        HostError: If torch is absent on a GPU host.
    """
    pinned = {name: pinned_version(one) for name, one in host_requirements(loaded.manifest).items()}
    found = []
    for name, version in pinned.items():
        if name in installed:
            found.append(HostPackage(name, version or "", present=installed[name]))
        elif name == "torch-npu" and not _has_cann(os.environ, root):
            found.append(HostPackage(name, version or "", left=_without_cann(loaded)))
        elif version is not None:
            found.append(HostPackage(name, version, wheel=choose_wheel(wheels, name, version)))
    for name, version in _only_from_files(loaded):
        wheel = choose_wheel([one for one in wheels if one.alone], name, version)
        seen = choose_wheel(wheels, name, version)
        left = f"it comes only from a file that you name: --wheels {seen.path if seen else 'FILE'}"
        present = installed.get(name, "")
        found.append(HostPackage(name, version, present, wheel, "" if present or wheel else left))
    absent = [one.name for one in found if one.version and one.wheel is None and one.name in _BUILT_FOR_CUDA]
    if absent and loaded.manifest.device == "cuda":
        what = "These packages come with the image of a GPU host, with CUDA's libraries"
        raise HostError(what, where=", ".join(absent), hint=NAME_THEIR_SOURCE)
    return tuple(found)


def _without_cann(loaded: LoadedManifest) -> str:
    why = "no CANN is here, and without it `import torch` fails beside torch_npu; source its set_env.sh and run again"
    if "vllm-ascend" not in loaded.manifest.components:
        return why
    # vLLM loads each plugin that has an entry point, whatever the host is.
    return f"{why}. Until then vLLM is imported only without vllm_ascend: VLLM_PLUGINS= python ..."


def _only_from_files(loaded: LoadedManifest) -> Iterator[tuple[str, str]]:
    """Yield packages that must not come from an index: PyPI's apex is another project, and some have their own URL."""
    if loaded.manifest.host.apex:
        yield "apex", loaded.manifest.host.apex
    for text in loaded.manifest.requirements:
        one = Requirement(text)
        if one.url is not None:
            file = one.url.rpartition("/")[2]
            yield canonicalize_name(one.name), file.split("-")[1] if file.endswith(".whl") else ""


def _has_cann(environ: Mapping[str, str], root: Path) -> bool:
    return any(environ.get(name) for name in _CANN_VARIABLES) or any(
        (root / folder).is_dir() for folder in _CANN_FOLDERS
    )
