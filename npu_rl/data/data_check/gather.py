"""Input of `data check`: the files of a folder, the reward in the workspace, the model's tokenizer."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from npu_rl.common.errors import DataError, HostError, UsageError
from npu_rl.data.data_check.check_data import Checked, samples_of, unjudged
from npu_rl.data.data_check.prompt_lengths import prompt_lengths, require_tokenizer
from npu_rl.data.data_check.reward_trial import try_reward
from npu_rl.data.datasets.parquet_rows import UNLIMITED
from npu_rl.data.datasets.prepare_dataset import TEST, TRAIN
from npu_rl.data.datasets.trainer_files import Columns, read_trainer_file
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.recipes.recipe.recipe_paths import absolute, is_outside
from npu_rl.recipes.trainer_code.overlong_prompts import where_cut_left
from npu_rl.workspace.folder.chosen_interpreter import choose
from npu_rl.workspace.folder.receipt import read_lock
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths


def gather(
    loaded: LoadedRecipe,
    folder: Path,
    paths: WorkspacePaths | None,
    python: str | None,
    tokenizer: Path | None,
    notify: Callable[[str], None],
) -> Checked:
    """Read the files, try the reward and count tokens; what can't be done here is noted, not raised.

    Args:
        paths: The workspace; None leaves the reward out.
        python: The training interpreter; None for the one chosen for the workspace, else npu-rl's own.
        tokenizer: A tokenizer's folder; None takes the recipe's model, if it is on this machine.

    Raises:
        UsageError: For a recipe whose trainer reads other files.
        DataError: If the folder has none of the files, or one is incomplete.
        HostError: Without pyarrow.
    """
    if loaded.recipe.has_own_keys:
        raise UsageError(
            f"{loaded.recipe.name} is for a trainer that does not read Parquet files",
            where=loaded.where("trainer", "keys"),
            why="data check reads the Parquet files of verl's trainers.",
        )
    columns = _columns(loaded)
    notify(UNLIMITED or f"reading the files of {folder}")
    train, test = ([read_trainer_file(path, columns) for path in files] for files in _paths(loaded, folder))
    checked = Checked(train, test, cut_left=where_cut_left(paths.code if paths else None))
    if any(file.faults for file in checked.files):
        checked.unchecked["reward"] = checked.unchecked["lengths"] = "columns are missing"
        return checked
    chosen = choose(python, paths)
    if paths is None:
        checked.unchecked["reward"] = "no workspace"
    else:
        notify("trying the reward on right, wrong and empty responses")
        lock, _ = read_lock(paths)
        try:
            samples = samples_of(checked.files)
            checked.trials = try_reward(loaded, paths.code, chosen, lock.env, samples) if samples else []
            checked.unchecked |= unjudged(checked.trials, chosen)
        except HostError as error:
            checked.unchecked["reward"] = f"{error.what}: {error.why}"
    _measure(loaded, checked, tokenizer, chosen, columns.prompt, notify)
    return checked


def _columns(loaded: LoadedRecipe) -> Columns:
    """Return the columns that verl's `data.prompt_key`, `data.reward_fn_key` and `data.image_key` name."""
    keys = {"prompt": "data.prompt_key", "source": "data.reward_fn_key", "images": "data.image_key"}
    settings = loaded.settings
    return Columns(**{name: str(settings[key].value) for name, key in keys.items() if key in settings})


def _make(folder: Path) -> str:
    return f"Make its files: npu-rl data prepare DATASET --input FILE --output {shlex.quote(str(folder))}"


def _paths(loaded: LoadedRecipe, folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the files for training and validation: the recipe's file names, located in the folder."""
    if not folder.is_dir():
        raise DataError("No such folder", where=str(folder), hint=_make(folder))
    found = []
    for named, default in ((loaded.recipe.data.train, TRAIN), (loaded.recipe.data.test, TEST)):
        names = dict.fromkeys(Path(path).name for path in named or ())
        there = [folder / name for name in names if (folder / name).is_file()]
        if not there and (folder / default).is_file():
            there = [folder / default]
        if not there:
            listed = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "no files"
            raise DataError(
                f"The folder has no {' and no '.join(names or [default])}",
                where=str(folder),
                why=f"The folder has {listed}.",
                hint=_make(folder),
            )
        found.append(there)
    return found[0], found[1]


def _measure(
    loaded: LoadedRecipe,
    checked: Checked,
    tokenizer: Path | None,
    python: str,
    prompt_key: str,
    notify: Callable[[str], None],
) -> None:
    """Count the tokens of all prompts, or note why not."""
    folder = tokenizer or _model_folder(loaded)
    if folder is None:
        checked.unchecked["lengths"] = "no tokenizer on this machine: pass --tokenizer DIR"
        return
    notify(f"counting tokens with the tokenizer of {folder}")
    limit = loaded.recipe.data.prompt_length or 0
    try:
        require_tokenizer(folder)
        files = [file.path for file in checked.files]
        checked.lengths = prompt_lengths(python, folder, files, limit, prompt_key)
    except (UsageError, HostError) as error:
        if tokenizer is not None:
            raise
        checked.unchecked["lengths"] = f"{error.where}: {error.why} Pass --tokenizer DIR"


def _model_folder(loaded: LoadedRecipe) -> Path | None:
    """Return the recipe's model on this machine, if it is there."""
    named = loaded.recipe.model.path
    if named is None or not is_outside(named):
        return None
    try:
        folder = Path(absolute(named, loaded.path.parent))
    except UsageError:
        return None
    return folder if folder.is_dir() else None
