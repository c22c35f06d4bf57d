"""The requirements of a manifest and a recipe on a host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npu_rl.recipes.recipe.schema import Recipe

_A3_DIES_PER_CARD = 2


@dataclass(frozen=True)
class WantedHost:
    """The known requirements on a host; all empty without a manifest and a recipe.

    Attributes:
        manifest: The manifest's name.
        device: npu, cuda or cpu.
        versions: The manifest's `host`, as written.
        requirements: Its packages.
        env: Variables that the manifest and the recipe set for the run.
        install: The command that installs the manifest's packages.
        kind: The machine of a recipe: a2, a3, cuda or cpu.
        dies: Devices of a node that the recipe uses.
    """

    manifest: str = ""
    device: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    requirements: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    install: str = ""
    kind: str = ""
    recipe: str = ""
    dies: int | None = None
    nodes: int = 1
    die_memory_gb: float | None = None
    interface: str | None = None

    def of_manifest(self, name: str) -> str:
        """Return the manifest's version of something as a wish; "" if it names none."""
        asked = self.versions.get(name)
        return f"{asked} (manifest {self.manifest})" if asked else ""

    def with_recipe(self, recipe: Recipe) -> WantedHost:
        """Return the requirements of the manifest and of a recipe. A card with two dies is an Atlas A3's."""
        cluster = recipe.cluster
        of_npus = "a3" if cluster.dies_per_card == _A3_DIES_PER_CARD else "a2"
        return replace(
            self,
            device=recipe.device,
            kind=of_npus if recipe.device == "npu" else recipe.device,
            recipe=recipe.name,
            dies=cluster.dies if recipe.device != "cpu" else None,
            nodes=cluster.nodes,
            die_memory_gb=cluster.die_memory_gb if recipe.device != "cpu" else None,
            interface=cluster.interface,
            env={**self.env, **recipe.env},
        )
