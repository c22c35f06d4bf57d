"""The packages that a manifest leaves to its host, at the manifest's versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from npu_rl.stack.requirements.bound_check import HOST_PACKAGES

if TYPE_CHECKING:
    from npu_rl.stack.manifest.schema import Manifest


def host_requirements(manifest: Manifest) -> dict[str, Requirement]:
    """Return torch and its like by canonical name: the version of the manifest's `host`, else of its requirements."""
    named = {canonicalize_name(one.name): one for one in map(Requirement, manifest.requirements)}
    found = {}
    for field in HOST_PACKAGES:
        name, version = canonicalize_name(field), getattr(manifest.host, field)
        if version is not None:
            found[str(name)] = Requirement(f"{name}=={version}")
        elif name in named:
            found[str(name)] = named[name]
    return found


def pinned_version(requirement: Requirement) -> str | None:
    """Return the one version that a requirement takes; None if it takes several."""
    return next((bound.version for bound in requirement.specifier if bound.operator == "=="), None)
