"""The files and folders that `trainer.paths` names, for a trainer with its own keys."""

from __future__ import annotations

from npu_rl.common.masking import without_passwords
from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.common.yaml_documents.problems import KeyPath
from npu_rl.recipes.judgement.missing_files import is_expected_here, missing_path, own_prepare_command
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.recipes.recipe.trainer_settings import OVERRIDES
from npu_rl.recipes.trainer_code.config_tree import ConfigTree


def path_findings(loaded: LoadedRecipe, tree: ConfigTree | None, here: bool) -> list[Finding]:
    """Return the findings on the files and folders of `trainer.paths`.

    Args:
        tree: The trainer's composed configuration files.
        here: Whether the recipe is to run on this machine, which then needs them. Elsewhere it is noted
            that they are not in a folder that is here.
    """
    given = loaded.settings
    keys = loaded.recipe.trainer.keys
    set_by_run = (keys.checkpoint.folder or []) if keys else []
    found: list[Finding] = []
    for key in loaded.recipe.trainer.paths:
        setting, entry = given.get(key), tree.entries.get(key) if tree else None
        if key in set_by_run or (setting is None and entry is None):
            continue
        value = setting.value if setting else entry.value if entry else None
        path: KeyPath = setting.path if setting else ()
        where = loaded.where(*path)
        for one in value if isinstance(value, list) else [value]:
            if not isinstance(one, str):
                continue
            fix = f"set {OVERRIDES}.{key} to one that every node of the run has"
            if not setting and one.startswith(("./", "../")):
                message = f"{one!r} is relative to the working folder, which is the run's own"
                found.append(Finding("trainer-path", Severity.ERROR, path, key, message, fix, where))
                continue
            place = missing_path(one, loaded.path.parent, by_prefix=True)
            if place is None or not (here or is_expected_here(one, place)):
                continue
            shown = repr(without_passwords(str(place)))
            message = (
                f"there is no {shown}, nor a file whose name begins so{'' if here else ', on this machine'}"
            )
            command = own_prepare_command(loaded, key, place)
            fix = f"{command}, or {fix}" if command else fix
            severity = Severity.ERROR if here else Severity.NOTE
            found.append(Finding("trainer-path", severity, path, key, message, fix, where))
    return found
