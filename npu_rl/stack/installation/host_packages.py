"""The packages that belong to the host: kept where present, else from a named wheel or an index."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from npu_rl.common.bounded import chunks, open_file
from npu_rl.common.errors import HostError
from npu_rl.stack.installation.index_packages import PackageIndexes
from npu_rl.stack.installation.named_wheels import NamedWheel, choose_wheel
from npu_rl.stack.installation.target_python import TargetPython
from npu_rl.stack.pylocks.locked_versions import is_wanted_version
from npu_rl.stack.pylocks.pylock_file import LockedPackage
from npu_rl.stack.requirements.host_requirements import host_requirements, pinned_version
from npu_rl.stack.sources.credentials import strip_credentials
from npu_rl.stack.sources.pip_config import TORCH_FOR_CPUS

if TYPE_CHECKING:
    from npu_rl.stack.manifest.load_manifest import LoadedManifest

# Their builds for CPUs have a version of their own on x86-64, 2.5.1+cpu, which no index but PyTorch's has.
_BUILT_FOR_CUDA = ("torch", "torchvision", "torchaudio")
_CANN_VARIABLES = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")
_CANN_FOLDERS = ("usr/local/Ascend/ascend-toolkit", "usr/local/Ascend/cann")


@dataclass(frozen=True)
class HostPackage:
    """A package that belongs to the host, and how it is provided.

    Attributes:
        wanted: The manifest's version; "" if it names no version.
        present: The version that is kept.
        wheel: The file to install it from.
        found: The package as an index lists it.
        left: The reason why it is not installed.
    """

    name: str
    wanted: str
    present: str = ""
    wheel: Path | None = None
    found: LockedPackage | None = None
    left: str = ""

    @property
    def comes(self) -> bool:
        """Return whether it is to be installed."""
        return self.wheel is not None or self.found is not None

    @property
    def version(self) -> str:
        """The version that is kept or installed."""
        return self.present or (self.found.version if self.found else self.wanted)

    def requirement(self) -> str:
        """Return the line of a requirements file, with hashes. Raises OSError for a wheel that can't be read."""
        if self.wheel is not None:
            return f"{self.name} @ {self.wheel.as_uri()} --hash=sha256:{_sha256(self.wheel)}"
        assert self.found is not None
        hashes = " ".join(f"--hash=sha256:{file.sha256}" for file in self.found.files)
        return f"{self.name}=={self.found.version} {hashes}"


def host_packages(
    loaded: LoadedManifest,
    target: TargetPython,
    wheels: Sequence[NamedWheel],
    indexes: PackageIndexes,
    root: Path = Path("/"),
) -> tuple[HostPackage, ...]:
    """Return the packages that a manifest leaves to its host, and where each comes from.

    Args:
        root: Folder below which CANN is looked for.

    Raises:
        HostError: For all packages that are absent and have no source.
        SourceError: If an index can't be queried.
    """
    wanted = dict(_wanted(loaded))
    by_file = dict(_only_from_files(loaded))
    found, refused = [], []
    for name, version in {**wanted, **by_file}.items():
        present = target.packages.get(name)
        if present is not None:
            found.append(HostPackage(name, version, present=present.version))
            continue
        named = [one for one in wheels if one.alone] if name in by_file else wheels
        wheel = choose_wheel(named, name, version)
        if name == "torch-npu" and not _has_cann(os.environ, root):
            found.append(HostPackage(name, version, left=_without_cann(loaded)))
        elif wheel is not None:
            found.append(HostPackage(name, str(wheel.version), wheel=wheel.path))
        elif name in by_file:
            found.append(HostPackage(name, version, left=_without_file(name, version, wheels)))
        else:
            one, why = _of_index(name, version, loaded.manifest.device, indexes)
            found.append(HostPackage(name, version, found=one))
            refused += [why + _other_wheels(name, version, wheels)] if one is None else []
    if refused:
        raise HostError(
            "Packages of the host are absent, and come from nowhere",
            where=target.shown,
            why="\n".join(refused),
            hint="Name their wheels: --wheels DIR, or --wheels FILE for each\n"
            "or the index that has them: pip config set global.extra-index-url URL\n"
            f"torch for CPUs, which torch_npu is made for, is in PyTorch's: {TORCH_FOR_CPUS}",
        )
    return tuple(found)


def host_notes(packages: Sequence[HostPackage]) -> Iterator[str]:
    """Yield notes for the user on the host's packages."""
    for one in packages:
        if one.left:
            yield f"{one.name} {one.wanted}".strip() + f" is not installed: {one.left}"
        elif one.present and one.wanted and not is_wanted_version(one.present, one.wanted):
            yield f"{one.name} {one.present} is kept as the host's; the manifest wants {one.wanted}"


def _without_cann(loaded: LoadedManifest) -> str:
    why = "no CANN is here, and without it `import torch` fails beside torch_npu; source its set_env.sh and run again"
    if "vllm-ascend" not in loaded.manifest.components:
        return why
    # vLLM loads each plugin that has an entry point, whatever the host is.
    return f"{why}. Until then vLLM is imported only without vllm_ascend: VLLM_PLUGINS= python ..."


def _wanted(loaded: LoadedManifest) -> Iterator[tuple[str, str]]:
    """Yield name and version of what the manifest pins."""
    for name, requirement in host_requirements(loaded.manifest).items():
        version = pinned_version(requirement)
        if version is not None:
            yield name, version


def _only_from_files(loaded: LoadedManifest) -> Iterator[tuple[str, str]]:
    """Yield packages that must not come from an index: PyPI's apex is another project, and some have their own URL."""
    if loaded.manifest.host.apex:
        yield "apex", loaded.manifest.host.apex
    for text in loaded.manifest.requirements:
        one = Requirement(text)
        if one.url is not None:
            file = one.url.rpartition("/")[2]
            yield canonicalize_name(one.name), file.split("-")[1] if file.endswith(".whl") else ""


def _of_index(
    name: str, version: str, device: str, indexes: PackageIndexes
) -> tuple[LockedPackage | None, str]:
    """Return a package as an index lists it, or the reason why it can't be used."""
    places = (
        ", ".join(map(strip_credentials, indexes.settings.index_urls)) or "no index, as pip is configured"
    )
    if name in _BUILT_FOR_CUDA:
        if device == "cuda":
            return None, f"{name} {version}: comes with the image of a GPU host, with CUDA's libraries"
        built = indexes.find(name, f"{version}+cpu") if indexes.target.machine == "x86_64" else None
        if built is not None:
            return built, ""
    found = indexes.find(name, version)
    if found is None:
        return None, f"{name} {version}: not found ({places})"
    if name in _BUILT_FOR_CUDA and indexes.needs_cuda(found):
        return (
            None,
            f"{name} {version}: the index's wheel is built for CUDA, which this host does not have ({places})",
        )
    return found, ""


def _without_file(name: str, version: str, wheels: Sequence[NamedWheel]) -> str:
    lying = choose_wheel(wheels, name, version)
    if lying is not None:
        return f"it comes only from a file that you name: --wheels {lying.path}"
    return f"it comes only from a file that you name: --wheels FILE{_other_wheels(name, version, wheels)}"


def _other_wheels(name: str, version: str, wheels: Sequence[NamedWheel]) -> str:
    """Return why the wheels of that name are unsuitable."""
    others = [one for one in wheels if one.name == name]
    if not others:
        return ""
    why = [
        f"{one.path.name} is {'for another Python or machine' if one.rank is None else f'not {version}'}"
        for one in others
    ]
    return f"; {'; '.join(why)}"


def _has_cann(environ: Mapping[str, str], root: Path) -> bool:
    return any(environ.get(name) for name in _CANN_VARIABLES) or any(
        (root / folder).is_dir() for folder in _CANN_FOLDERS
    )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open_file(path) as file:
        for chunk in chunks(file):
            digest.update(chunk)
    return digest.hexdigest()
