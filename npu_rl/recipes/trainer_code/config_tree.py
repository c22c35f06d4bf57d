"""The trainer's composed Hydra configuration, without a recipe's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class ConfigFault(ValueError):
    """A configuration of the trainer that can't be composed.

    Attributes:
        where: The file, or the recipe's key that names it.
    """

    def __init__(self, message: str, where: str) -> None:
        super().__init__(message)
        self.where = where


class ModuleFault(ConfigFault):
    """The trainer's module is missing, or names no configuration."""


@dataclass(frozen=True)
class ConfigEntry:
    """One key of the configuration.

    Attributes:
        value: Its default, an interpolation as text; None for a section.
        section: Whether it is a section.
    """

    value: Any
    section: bool

    @property
    def interpolation(self) -> bool:
        """Return whether the value is an interpolation, which Hydra resolves."""
        return isinstance(self.value, str) and "${" in self.value


@dataclass(frozen=True)
class ConfigTree:
    """The composed configuration.

    Attributes:
        entries: Each key and section, by its dotted name.
        search_path: `hydra.searchpath` of its first file, as it is written there.
        choices: The option of each group in the defaults lists, by the name that sets it on Hydra's command line.
        refused: The recipe's settings that Hydra can't set, and why.
    """

    entries: Mapping[str, ConfigEntry]
    search_path: tuple[str, ...] = ()
    choices: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)

    def children(self, section: str) -> list[str]:
        """Return the names directly in a section; "" is the top level."""
        prefix = f"{section}." if section else ""
        rests = (key[len(prefix) :] for key in self.entries if key.startswith(prefix))
        return [rest for rest in rests if "." not in rest]

    def holders(self, name: str) -> list[str]:
        """Return the sections that have a key of this name."""
        return [key.rpartition(".")[0] for key in self.entries if key.rpartition(".")[2] == name]
