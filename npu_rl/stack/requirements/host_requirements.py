"""The packages that a manifest leaves to its host, at the manifest's versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from npu_rl.stack.requirements.bound_check import HOST_PACKAGES

if TYPE_CHECKING:
    from npu_rl.stack.manifest.schema import Manifest


# Of the METADATA of torch 2.5.1 to 2.13.0, without the host's packages, CUDA's, and setuptools.
_NEEDS_OF_TORCH = ("filelock", "fsspec", "jinja2", "networkx", "typing-extensions>=4.10.0")
_SYMPY_BEFORE_2_7, _SYMPY = "sympy==1.13.1", "sympy>=1.13.3"


def host_requirements(manifest: Manifest) -> dict[str, Requirement]:
    """Return torch and its like by canonical name: the version of the manifest's `host`, else of its requirements."""
    versions = {field: getattr(manifest.host, field) for field in HOST_PACKAGES}
    return named_host_requirements(versions, manifest.requirements)


def named_host_requirements(
    versions: Mapping[str, str | None], requirements: Iterable[str]
) -> dict[str, Requirement]:
    """Return the same of a `host` and requirements, such as those of a lock."""
    named = {canonicalize_name(one.name): one for one in map(Requirement, requirements)}
    found = {}
    for field in HOST_PACKAGES:
        name, version = canonicalize_name(field), versions.get(field)
        if version is not None:
            found[str(name)] = Requirement(f"{name}=={version}")
        elif name in named:
            found[str(name)] = named[name]
    return found


def pinned_version(requirement: Requirement) -> str | None:
    """Return the one version that a requirement takes; None if it takes several."""
    return next((bound.version for bound in requirement.specifier if bound.operator == "=="), None)


def needs_of_torch(manifest: Manifest) -> tuple[str, ...]:
    """Return the requirements of the torch that a manifest names.

    Without them a torch from a wheel, installed without dependencies, is incomplete. GPU images bring torch with them.
    """
    torch = host_requirements(manifest).get("torch")
    if torch is None or manifest.device == "cuda":
        return ()
    version = pinned_version(torch)
    old = version is not None and Version(version) < Version("2.7")
    return (*_NEEDS_OF_TORCH, _SYMPY_BEFORE_2_7 if old else _SYMPY)
