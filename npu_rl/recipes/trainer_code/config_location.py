"""The location of the trainer's Hydra configuration, and the folders that its search path adds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from npu_rl.recipes.trainer_code.config_tree import ConfigFault


class FolderFault(ConfigFault):
    """The folder that `trainer.config_path` names is not in the code tree."""


@dataclass(frozen=True)
class ConfigLocation:
    """The configuration that a run starts from.

    Attributes:
        module: The trainer's entry point, such as verl.trainer.main_ppo.
        config: The name of the configuration, such as ppo_trainer.
        folder: Its folder in the code tree; None for the one that `@hydra.main` of the module names.
        choices: The option of groups that the recipe sets; a group that no defaults list has is ignored.
    """

    module: str
    config: str
    folder: str | None = None
    choices: Mapping[str, str | None] = field(default_factory=dict)

    def find_folder(self, code: Path) -> Path:
        """Return the folder of the configuration, absolute. Raises ConfigFault if the module or folder is missing."""
        from npu_rl.recipes.trainer_code.hydra_entry import entry_point, require_module

        if self.folder is None:
            return entry_point(code, self.module).folder
        require_module(code, self.module)
        found = (code / self.folder).resolve()
        if not found.is_dir():
            raise FolderFault("the code has no such folder", self.folder)
        return found


def folders_with(code: Path, config: str) -> list[str]:
    """Return the folders named `config` in the code tree that contain the configuration."""
    name = config.removesuffix(".yaml").removesuffix(".yml")
    found = (path.parent for path in code.rglob(f"config/{name}.yaml")) if name.isidentifier() else ()
    return sorted(folder.relative_to(code).as_posix() for folder in found)


def absolute_search_path(places: tuple[str, ...], code: Path) -> tuple[str, ...] | None:
    """Return `hydra.searchpath` with absolute paths; None if no change is needed.

    A relative path holds only in the folder that the upstream's scripts are started in, the top of the code. A run is
    started elsewhere, since the trainer writes into its working folder
    (recipe/dapo/config/dapo_trainer.yaml @ 796871d7:3 has file://verl/trainer/config).
    """
    absolute = tuple(_absolute_place(place, code) for place in places)
    return absolute if absolute != places else None


def _absolute_place(place: str, code: Path) -> str:
    kind, separator, rest = place.partition("://")
    if separator and kind != "file":
        return place  # pkg:// is found on the path of Python
    path = rest if separator else place
    return place if path.startswith("/") else f"file://{code / path}"
