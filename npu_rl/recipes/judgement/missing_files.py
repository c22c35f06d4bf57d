"""Files and folders that only the machines of a run need: model, checkpoint, data; the commands that make data.

That they are missing is an error only on a machine of the run; elsewhere they are listed as not checked.
"""

from __future__ import annotations

import glob
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from npu_rl.common.errors import UsageError
from npu_rl.common.masking import without_passwords
from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.common.yaml_documents.problems import KeyPath, dotted
from npu_rl.data.datasets.known_datasets import DATASETS
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.recipes.recipe.recipe_paths import absolute, is_outside, split_function
from npu_rl.recipes.recipe.trainer_settings import OVERRIDES
from npu_rl.recipes.sizing.model_config import differing_sizes_in
from npu_rl.recipes.trainer_code.config_tree import ConfigTree

_MADE = {"train": "train.parquet", "test": "test.parquet"}  # the names that `data prepare` gives
_OURS = "npu_rl_runtime/rewards/deepscaler.py"
_SHOWN_SIZES = 3
_SHOWN_LENGTH = 160  # characters of a path in a message


class RunPath(NamedTuple):
    """A path that a recipe names for the machines of its run; `key` is the trainer's, for one with its own keys."""

    rule: str
    path: KeyPath
    given: str
    key: str = ""


def absent_paths(loaded: LoadedRecipe) -> dict[str, str]:
    """Return the model, checkpoint and data paths that this machine lacks, by recipe key."""
    return {dotted(one.path): one.given for one in _run_paths(loaded, None) if _missing(loaded, one)}


def path_findings(loaded: LoadedRecipe, tree: ConfigTree | None, here: bool) -> list[Finding]:
    """Return the findings on model, checkpoint, data and the files and folders of `trainer.paths`.

    Args:
        tree: The trainer's composed configuration files, which have the values that the recipe leaves out.
        here: Whether the recipe is to run on this machine, which then needs them.
    """
    found = _model_findings(loaded, here)
    for one in _run_paths(loaded, tree):
        fix = "name one that every node of the run has"
        if one.rule == "trainer-path":
            fix = f"set {OVERRIDES}.{one.key} to one that every node of the run has"
        place = _missing(loaded, one)
        if not one.path and one.given.startswith(("./", "../")):
            message = f"{one.given!r} is relative to the working folder, which is the run's own"
        elif place is not None and here:
            kind = "folder " if one.rule.startswith("model") else ""
            more = ", nor a file whose name begins so" if one.rule == "trainer-path" else ""
            message = f"there is no {kind}{shown_path(place)}{more}"
            command = _prepare_command(loaded, one, place)
            fix = f"{command}, or {fix}" if command else fix
        else:
            continue
        found.append(loaded.finding(one.rule, Severity.ERROR, one.path, message, fix, key=one.key))
    return found


def _run_paths(loaded: LoadedRecipe, tree: ConfigTree | None) -> Iterator[RunPath]:
    recipe = loaded.recipe
    if recipe.has_own_keys:
        keys = recipe.trainer.keys
        set_by_run = (keys.checkpoint.folder or []) if keys else []
        for key in recipe.trainer.paths:
            setting, entry = loaded.settings.get(key), tree.entries.get(key) if tree else None
            value = setting.value if setting else entry.value if entry else None
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, str) and key not in set_by_run:
                    yield RunPath("trainer-path", setting.path if setting else (), one, key)
        return
    if recipe.model.path is not None:
        yield RunPath("model-path", ("model", "path"), recipe.model.path)
    if recipe.megatron and recipe.model.checkpoint is not None:
        yield RunPath("model-checkpoint", ("model", "checkpoint"), recipe.model.checkpoint)
    for part, files in (("train", recipe.data.train), ("test", recipe.data.test)):
        for index, file in enumerate(files or ()):
            yield RunPath("data-file", ("data", part, index), file)


def _missing(loaded: LoadedRecipe, one: RunPath) -> Path | None:
    """Return a path that doesn't exist here; None if it exists, or is a hub name or in a remote file system.

    Megatron's data sets are named by what their files have in common: DATA_packed_input_ids_document.bin.
    """
    place = local_path(loaded, one.given)
    if place is None:
        return None
    if is_there(place.is_dir if one.rule.startswith("model") else place.exists):
        return None
    beside = place.parent.glob(f"{glob.escape(place.name)}*")
    return None if one.rule == "trainer-path" and is_there(lambda: any(beside)) else place


def _model_findings(loaded: LoadedRecipe, here: bool) -> list[Finding]:
    """Return an error if `model.path` has no config.json here, or other sizes than the recipe is planned for."""
    recipe, key = loaded.recipe, ("model", "path")
    place = None if recipe.has_own_keys else local_path(loaded, recipe.model.path)
    if place is None or not is_there(place.is_dir):
        return []
    config, named = place / "config.json", recipe.model.architecture
    if here and not is_there(config.is_file):
        message, fix = f"{shown_path(place)} has no config.json", "name a folder in Hugging Face's layout"
        return [loaded.finding("model-path", Severity.ERROR, key, message, fix)]
    if not (named and (other := differing_sizes_in(config, named))):
        return []
    sizes = ", ".join(other[:_SHOWN_SIZES]) + (", ..." if len(other) > _SHOWN_SIZES else "")
    message = f"{shown_path(config)} is not model.architecture {named}: {sizes}"
    fix = "set model.path to the folder of that model, or model.architecture to the one in the folder"
    return [loaded.finding("weights-architecture", Severity.ERROR, key, message, fix)]


def local_path(loaded: LoadedRecipe, given: str | None) -> Path | None:
    """Return a path on this machine; None for a hub name, a remote file system, or an unknown ~USER."""
    if given is None or not is_outside(given):
        return None
    try:
        return Path(absolute(given, loaded.path.parent))
    except UsageError:  # reported when the trainer's arguments are rendered
        return None


def is_there(test: Callable[[], bool]) -> bool:
    """Return the result of a path test; False if the test fails, such as for lack of permission or a long name."""
    try:
        return test()
    except (OSError, ValueError):
        return False


def shown_path(path: Path) -> str:
    """Return a path for a message, shortened to its end if it is long."""
    text = repr(without_passwords(str(path)))
    return text if len(text) <= _SHOWN_LENGTH else f"'...{text[-_SHOWN_LENGTH:]}"


def _prepare_command(loaded: LoadedRecipe, one: RunPath, place: Path) -> str:
    """Return the command that makes missing data, and the setting needed if its output has another name; else ""."""
    dataset = _dataset_of(loaded, place)
    if one.rule == "trainer-path":
        ours = any(name.startswith("mindspeed_rl.") for name in loaded.recipe.trainer.sections.values())
        if not ours or one.key.rpartition(".")[2] != "data_path":
            return ""
        dataset, options = dataset or "deepscaler", ["--for", "mindspeed-rl", "--tokenizer", "DIR"]
        name, setting = "data", f"{OVERRIDES}.{one.key}={{}}"
    elif one.rule != "data-file":
        return ""
    elif not dataset:
        return f"make one of {', '.join(DATASETS)} (npu-rl data prepare NAME --input FILE --output DIR)"
    else:
        flagship = dataset == "deepscaler" and loaded.manifest_name == "deepseek-r1-zero"
        options = ["--template", "r1-zero"] if flagship else []
        name, setting = _MADE[str(one.path[1])], f"data.{one.path[1]}=[{{}}]"
    # `data prepare` creates its folder
    folder = place.parent / dataset if is_there(place.parent.exists) else place.parent
    words = ["npu-rl", "data", "prepare", dataset, "--input", "FILE", "--output", str(folder), *options]
    made = folder / name
    return shlex.join(words) + ("" if made == place else f" and set {setting.format(made)}")


def _dataset_of(loaded: LoadedRecipe, place: Path) -> str:
    """Return the dataset that the file, its folder or the reward suggests; "" if unknown."""
    named = f"{place.parent.name}/{place.name}".lower().replace("_", "-")
    function = loaded.recipe.reward.function
    by_reward = "deepscaler" if function and split_function(function)[0] == _OURS else ""
    return next((name for name in DATASETS if name in named), by_reward)
