"""The requirements of a manifest that uv resolves, and the packages left to the host or the tree."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from npu_rl.stack.requirements.bound_check import HOST_PACKAGES
from npu_rl.stack.requirements.host_requirements import needs_of_torch

if TYPE_CHECKING:
    from npu_rl.stack.manifest.load_manifest import LoadedManifest

# torch's own wheels pin a triton; on Ascend the module is triton-ascend's. What PyPI has newest fits neither.
_OF_THE_HOST = (*HOST_PACKAGES, "triton")


@dataclass(frozen=True)
class PackageSet:
    """The requirements of a manifest, sorted by their provider.

    Attributes:
        requirements: The requirements that uv resolves, in the manifest's order.
        host: Packages that the host provides, regardless of which package requires them.
        tree: Packages that the code tree has, under the names that importlib.metadata finds.
        from_urls: Packages that the manifest names by URL; a lock of PyPI's files can't have them.
        overridden: Pinned requirements of packages that `overrides` names.
        of_torch: Requirements of the manifest's torch, which uv can't see since torch is the host's. They follow from
            the others, so the digest leaves them out.
    """

    requirements: tuple[str, ...]
    host: tuple[str, ...]
    tree: tuple[str, ...]
    from_urls: tuple[str, ...]
    overridden: tuple[str, ...]
    of_torch: tuple[str, ...] = ()

    @property
    def left_out(self) -> tuple[str, ...]:
        """All packages that are left out of every lock."""
        return tuple(dict.fromkeys((*self.host, *self.tree, *self.from_urls)))

    def digest(self) -> str:
        """Return the SHA-256 of the requirements that a lock is made from."""
        made_from = [sorted(self.requirements), sorted(self.left_out), sorted(self.overridden)]
        return hashlib.sha256(json.dumps(made_from, separators=(",", ":")).encode()).hexdigest()


def package_set(loaded: LoadedManifest) -> PackageSet:
    """Return the packages of a manifest."""
    manifest = loaded.manifest
    named = {text: Requirement(text) for text in manifest.requirements}
    host = tuple(canonicalize_name(name) for name in _OF_THE_HOST)
    dists = [component.dist.name for component in manifest.components.values() if component.dist]
    tree = tuple(sorted({canonicalize_name(name) for name in dists} - _names(named.values())))
    from_urls = {canonicalize_name(one.name) for one in named.values() if one.url is not None}
    overridden = {canonicalize_name(override.package) for override in manifest.overrides}
    wanted = {
        text: one for text, one in named.items() if canonicalize_name(one.name) not in {*host, *from_urls}
    }
    return PackageSet(
        requirements=tuple(wanted),
        host=host,
        tree=tree,
        from_urls=tuple(sorted(from_urls)),
        overridden=tuple(
            text
            for text, one in wanted.items()
            if canonicalize_name(one.name) in overridden and _is_pinned(one)
        ),
        of_torch=needs_of_torch(manifest),
    )


def _names(requirements: Collection[Requirement]) -> set[str]:
    return {canonicalize_name(one.name) for one in requirements}


def _is_pinned(requirement: Requirement) -> bool:
    return [one.operator for one in requirement.specifier] == ["=="]
