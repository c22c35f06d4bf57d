"""The requirements of a manifest and a recipe on a host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npu_rl.recipes.recipe.schema import Recipe

_A3_DIES_PER_CARD = 2


@dataclass(frozen=True)
class WantedStack:
    """The requirements of a manifest, or a lock of it, on a host.

    Attributes:
        versions: Its `host`, as written.
        requirements: Its packages.
        env: Variables that it sets for each run.
        install: The command that installs its packages.
    """

    name: str = ""
    device: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    requirements: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    install: str = ""


@dataclass(frozen=True)
class WantedHost:
    """The known requirements on a host.

    Attributes:
        device: npu, cuda or cpu; "" without a recipe or manifest.
        kind: The machine of a recipe: a2, a3, cuda or cpu.
        manifest: The manifest's name; `versions` and `requirements` are its own.
        dies: Devices of a node that the recipe uses.
        env: Variables that the manifest and the recipe set for the run.
        install: The command that installs the manifest's packages.
    """

    device: str = ""
    kind: str = ""
    manifest: str = ""
    recipe: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    requirements: tuple[str, ...] = ()
    dies: int | None = None
    nodes: int = 1
    die_memory_gb: float | None = None
    interface: str | None = None
    address: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    install: str = ""


def wanted_host(stack: WantedStack | None, recipe: Recipe | None) -> WantedHost:
    """Return the requirements of a manifest or lock and of a recipe. Either may be missing."""
    stack = stack or WantedStack()
    wanted = WantedHost(
        device=stack.device,
        manifest=stack.name,
        versions=stack.versions,
        requirements=stack.requirements,
        env=stack.env,
        install=stack.install,
    )
    if recipe is None:
        return wanted
    cluster = recipe.cluster
    return replace(
        wanted,
        device=recipe.device,
        kind=_kind_of(recipe),
        recipe=recipe.name,
        dies=cluster.dies if recipe.device != "cpu" else None,
        nodes=cluster.nodes,
        die_memory_gb=cluster.die_memory_gb if recipe.device != "cpu" else None,
        interface=cluster.interface,
        address=cluster.address,
        env={**stack.env, **recipe.env},
    )


def _kind_of(recipe: Recipe) -> str:
    """Return the machine that a recipe is for. A card with two dies is an Atlas A3's."""
    if recipe.device != "npu":
        return recipe.device
    return "a3" if recipe.cluster.dies_per_card == _A3_DIES_PER_CARD else "a2"
