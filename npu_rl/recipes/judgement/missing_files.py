"""Files of a recipe that are missing on this machine, and the commands that make its data."""

from __future__ import annotations

import glob
import shlex
from collections.abc import Iterator
from pathlib import Path

from npu_rl.common.errors import UsageError
from npu_rl.data.datasets.known_datasets import DATASETS
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.recipes.recipe.recipe_paths import absolute, is_outside, split_function
from npu_rl.recipes.recipe.trainer_settings import OVERRIDES

RULES = ("model-path", "model-checkpoint", "data-file", "trainer-path")
"""Ids of the findings on files and folders that only the machines of a run need."""

_MADE = {"train": "train.parquet", "test": "test.parquet"}  # the names that `data prepare` gives
_OURS = "npu_rl_runtime/rewards/deepscaler.py"


def is_expected_here(given: str, place: Path, *, with_folder: bool = False) -> bool:
    """Return whether a file should be on this machine, even if another machine runs the recipe.

    Those beside the recipe are, and those whose folder is there. `/` and the home folder, which every machine has,
    don't count.

    Args:
        with_folder: Whether what makes the file makes its folder, too, which then need not be there.
    """
    if not given.startswith(("/", "~")):
        return True
    folders = (place.parent, place.parent.parent) if with_folder else (place.parent,)
    try:
        known = (Path(place.anchor), Path.home())
        return any(folder not in known and folder.is_dir() for folder in folders)
    except (OSError, RuntimeError, ValueError):
        return False


def absent_paths(loaded: LoadedRecipe) -> dict[str, str]:
    """Return the model, checkpoint and data files that this machine lacks and isn't expected to have, by recipe key.

    They may be on the machines of the run. Files that are expected here have findings of their own.
    """
    absent = {}
    for key, given, with_folder in _named_paths(loaded):
        place = missing_path(given, loaded.path.parent, by_prefix=loaded.recipe.has_own_keys)
        if place is not None and not is_expected_here(given, place, with_folder=with_folder):
            absent[key] = given
    return absent


def missing_path(value: str, folder: Path, *, by_prefix: bool) -> Path | None:
    """Return a path that doesn't exist here; None if it exists, or is a hub name or in a remote file system.

    Args:
        folder: Where relative paths begin.
        by_prefix: Whether a file whose name begins so counts, too. Megatron's data sets are named by what their files
            have in common: DATA_packed_input_ids_document.bin.
    """
    if not is_outside(value):
        return None
    place = Path(value)
    try:
        place = Path(absolute(value, folder))
        there = place.exists() or (by_prefix and any(place.parent.glob(f"{glob.escape(place.name)}*")))
    except (OSError, ValueError, UsageError):
        there = False
    return None if there else place


def _named_paths(loaded: LoadedRecipe) -> Iterator[tuple[str, str, bool]]:
    """Yield key and value of each path, and whether the command that makes the file makes its folder, too."""
    recipe = loaded.recipe
    if recipe.has_own_keys:
        keys = recipe.trainer.keys
        set_by_run = (keys.checkpoint.folder or []) if keys else []
        for name in recipe.trainer.paths:
            setting = loaded.settings.get(name)
            if setting is not None and isinstance(setting.value, str) and name not in set_by_run:
                yield f"{OVERRIDES}.{name}", setting.value, False
        return
    model = recipe.model
    for key, given in (
        ("model.path", model.path),
        ("model.checkpoint", model.checkpoint if recipe.megatron else None),
    ):
        if given is not None:
            yield key, given, False
    for key, files in (("data.train", recipe.data.train), ("data.test", recipe.data.test)):
        for index, file in enumerate(files or ()):
            yield f"{key}[{index}]" if len(files or ()) > 1 else key, file, True


def prepare_command(loaded: LoadedRecipe, part: str, place: Path) -> str:
    """Return the command that makes a missing Parquet file, and the setting needed if its output has another name.

    Args:
        part: train or test, as in the recipe's section `data`.
    """
    dataset = _dataset_of(loaded, place)
    if not dataset:
        names = ", ".join(DATASETS)
        return f"make one of {names} (npu-rl data prepare NAME --input FILE --output DIR)"
    folder = _new_folder(place, dataset)
    words = ["npu-rl", "data", "prepare", dataset, "--input", "FILE", "--output", str(folder)]
    if dataset == "deepscaler" and loaded.manifest_facts.name == "deepseek-r1-zero":
        words += ["--template", "r1-zero"]
    made = folder / _MADE[part]
    return shlex.join(words) + ("" if made == place else f" and set data.{part}=[{made}]")


def own_prepare_command(loaded: LoadedRecipe, key: str, place: Path) -> str:
    """Return the command that makes missing data for MindSpeed-RL's trainer; "" for other trainers and keys."""
    trainer = loaded.recipe.trainer
    ours = any(dotted.startswith("mindspeed_rl.") for dotted in trainer.sections.values())
    if not ours or key.rpartition(".")[2] != "data_path":
        return ""
    dataset = _dataset_of(loaded, place) or "deepscaler"
    folder = _new_folder(place, dataset)
    words = ["npu-rl", "data", "prepare", dataset, "--input", "FILE"]
    words += ["--output", str(folder), "--for", "mindspeed-rl", "--tokenizer", "DIR"]
    made = folder / "data"
    return shlex.join(words) + ("" if made == place else f" and set overrides.{key}={made}")


def _new_folder(place: Path, dataset: str) -> Path:
    """Return the file's folder, or a new folder in it if that exists, since `data prepare` creates its folder."""
    try:
        return place.parent / dataset if place.parent.exists() else place.parent
    except OSError:
        return place.parent


def _dataset_of(loaded: LoadedRecipe, place: Path) -> str:
    """Return the dataset that the file, its folder or the reward suggests; "" if unknown."""
    named = f"{place.parent.name}/{place.name}".lower().replace("_", "-")
    for name in DATASETS:
        if name in named:
            return name
    function = loaded.recipe.reward.function
    return "deepscaler" if function and split_function(function)[0] == _OURS else ""
