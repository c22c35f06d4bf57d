"""Loading of the trainer's configuration, composed from its files or taken from the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npu_rl.recipes.trainer_code.answer_cache import AnswerCache
from npu_rl.recipes.trainer_code.config_location import ConfigLocation
from npu_rl.recipes.trainer_code.config_tree import ConfigEntry, ConfigTree


def load_configuration(code: Path, location: ConfigLocation, answers: AnswerCache) -> ConfigTree:
    """Return a configuration, composed from files or cached.

    Raises:
        ConfigFault: If a module, folder or file is missing, or can be resolved only by Hydra.
    """

    def compose() -> ConfigTree:
        from npu_rl.recipes.trainer_code.hydra_config import compose_files

        return compose_files(location.find_folder(code), location.config, code, location.choices)

    return answers.answer(["configuration", *location.identity], compose, _to_json, _from_json)


def _to_json(tree: ConfigTree) -> Any:
    if any(Path(name).is_absolute() for name in tree.files):
        raise ValueError("files outside the code folder, whose changes the cache does not see")
    rows = [[key, one.value, one.section, one.file, one.line] for key, one in tree.entries.items()]
    return [rows, tree.files, tree.search_path, dict(tree.choices)]


def _from_json(kept: Any) -> ConfigTree:
    rows, files, search_path, choices = kept
    entries = {key: ConfigEntry(*rest) for key, *rest in rows}
    return ConfigTree(entries, tuple(files), tuple(search_path), choices)
