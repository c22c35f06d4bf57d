"""The trainer's composed Hydra configuration: the value of each key and the place that set it last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class ConfigFault(ValueError):
    """A configuration file of the trainer that can't be read without running Hydra.

    Attributes:
        where: file:line.
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
        value: The value in the file, an interpolation as text; None for a section.
        section: Whether it is a section.
        file: The file that last wrote it.
        line: Its line there, from 1.
    """

    value: Any
    section: bool
    file: str
    line: int

    @property
    def where(self) -> str:
        """The place as file:line."""
        return f"{self.file}:{self.line}"

    @property
    def interpolation(self) -> bool:
        """Return whether the value is an interpolation, which Hydra resolves."""
        return isinstance(self.value, str) and "${" in self.value


@dataclass(frozen=True)
class ConfigTree:
    """The composed configuration.

    Attributes:
        entries: Each key and section, by its dotted name.
        files: The files it was composed from.
        search_path: `hydra.searchpath` of the first of them, as it is written there.
        choices: The option of each group in their defaults lists, by the name that sets it on Hydra's command line.
    """

    entries: Mapping[str, ConfigEntry]
    files: tuple[str, ...]
    search_path: tuple[str, ...] = ()
    choices: Mapping[str, str] = field(default_factory=dict)

    def children(self, section: str) -> list[str]:
        """Return the names directly in a section; "" is the top level."""
        prefix = f"{section}." if section else ""
        rests = (key[len(prefix) :] for key in self.entries if key.startswith(prefix))
        return [rest for rest in rests if "." not in rest]

    def holders(self, name: str) -> list[str]:
        """Return the sections that have a key of this name."""
        return [key.rpartition(".")[0] for key in self.entries if key.rpartition(".")[2] == name]
