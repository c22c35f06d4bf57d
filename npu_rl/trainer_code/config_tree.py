"""The trainer's composed Hydra configuration: where each key was last written, and with which value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_rl.trainer_code.answer_cache import AnswerCache


class ConfigFault(ValueError):
    """A configuration file of the trainer that can't be read without running Hydra. where: file:line."""

    def __init__(self, message: str, where: str) -> None:
        super().__init__(message)
        self.where = where


class ModuleFault(ConfigFault):
    """The trainer's module is missing, or says nothing of a configuration."""


@dataclass(frozen=True)
class ConfigEntry:
    """One key. value: what the file says (an interpolation as text); None for a section."""

    value: Any
    section: bool
    file: str
    line: int

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def interpolation(self) -> bool:
        """Whether Hydra takes the value from elsewhere."""
        return isinstance(self.value, str) and "${" in self.value


@dataclass(frozen=True)
class ConfigTree:
    """The composed configuration. entries: dotted key -> where it was last written, sections too."""

    entries: Mapping[str, ConfigEntry]
    files: tuple[str, ...]

    def children(self, section: str) -> list[str]:
        """The names directly in a section ("" is the top)."""
        prefix = f"{section}." if section else ""
        rests = (key[len(prefix) :] for key in self.entries if key.startswith(prefix))
        return [rest for rest in rests if "." not in rest]

    def holders(self, name: str) -> list[str]:
        """The sections that have a key of this name."""
        return [key.rpartition(".")[0] for key in self.entries if key.rpartition(".")[2] == name]


def configuration(code: Path, module: str, config: str, answers: AnswerCache) -> ConfigTree:
    """Return the configuration `config` that a module such as verl.trainer.main_ppo starts from, or its kept copy.

    Raises:
        ConfigFault: For a module or file that is missing, or that only Hydra can make sense of.
    """

    def compose() -> ConfigTree:
        from npu_rl.trainer_code.hydra_config import compose_files
        from npu_rl.trainer_code.hydra_entry import entry_point

        return compose_files(entry_point(code, module).folder, config, code)

    return answers.answer(["configuration", module, config], compose, _to_json, _from_json)


def _to_json(tree: ConfigTree) -> Any:
    if any(Path(name).is_absolute() for name in tree.files):
        raise ValueError("files outside the code folder, whose changes the cache does not see")
    rows = [[key, one.value, one.section, one.file, one.line] for key, one in tree.entries.items()]
    return {"entries": rows, "files": tree.files}


def _from_json(kept: Any) -> ConfigTree:
    entries = {key: ConfigEntry(*rest) for key, *rest in kept["entries"]}
    return ConfigTree(entries, tuple(kept["files"]))
