"""Check that the Python files that a recipe names exist and define what it names.

They lie in the tree or beside the recipe, so they are checked wherever the recipe is judged; one that is named by an
absolute path only on a machine of the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from npu_rl.common.errors import UsageError
from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.common.yaml_documents.problems import KeyPath, shown
from npu_rl.common.yaml_documents.suggest import nearest
from npu_rl.recipes.judgement.file_definitions import definitions_in
from npu_rl.recipes.judgement.missing_files import is_there, shown_path
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.recipes.recipe.recipe_paths import function_file, is_outside, split_function

# Key of a file -> key of a class in it; verl's load_extern_type reads both (verl/utils/import_utils.py:83@55e3c5b).
_CLASS_KEYS = {
    "data.custom_cls.path": "data.custom_cls.name",
    "data.sampler.class_path": "data.sampler.class_name",
    "data.datagen.path": "data.datagen.name",
}
_TEMPLATE = "actor_rollout_ref.model.custom_chat_template"


def named_file_findings(loaded: LoadedRecipe, code: Path | None, here: bool) -> list[Finding]:
    """Return the findings on the reward function, classes named by their file, and the chat template.

    Args:
        code: The workspace's code folder; None leaves out what lies in it.
        here: Whether the recipe is to run on this machine.
    """
    return [*_reward_function(loaded, code, here), *_classes(loaded, code, here), *_chat_template(loaded)]


def _reward_function(loaded: LoadedRecipe, code: Path | None, here: bool) -> Iterator[Finding]:
    named = loaded.recipe.reward.function
    file, name = split_function(named or "")
    if named is None or (not is_outside(file) and code is None):
        return

    def error(rule: str, message: str, fix: str) -> Finding:
        return loaded.finding(rule, Severity.ERROR, ("reward", "function"), message, fix)

    try:
        path = function_file(file, code or Path(), loaded.path.parent)
    except UsageError as unknown:  # a ~USER that does not exist
        yield error("reward-function-file", f"{unknown.what}: {unknown.why}", "name an existing file")
        return
    where = shown_path(path) if is_outside(file) else f"{shown(file)} of the workspace's code"
    if not is_there(path.is_file):
        if here or not file.startswith(("/", "~")) or is_there(path.parent.is_dir):
            folder = path.parent
            names = [one.name for one in folder.glob("*.py")] if is_there(folder.is_dir) else []
            near = nearest(path.name, names)
            right = f"{file[: len(file) - len(path.name)]}{near}:{name}"
            fix = f"set reward.function to {right}" if near else "name an existing file"
            what = "is a folder" if is_there(path.is_dir) else "is not there"
            yield error("reward-function-file", f"the file {where} {what}", fix)
    elif (defined := definitions_in(path)) is None:
        yield error("reward-function-file", f"{where} can't be read as Python", "correct its syntax")
    elif defined.lacks(name):
        only = defined.callables[0] if len(defined.callables) == 1 else ""
        near = nearest(name, defined.names) or only
        fix = f"set reward.function to {file}:{near}" if near else "name a function of the file"
        has = ", ".join(defined.callables[:6]) or "no function"
        yield error("reward-function-name", f"{where} does not define {name}; it has {has}", fix)


def _classes(loaded: LoadedRecipe, code: Path | None, here: bool) -> Iterator[Finding]:
    def error(rule: str, path: KeyPath, key: str, message: str, fix: str) -> Finding:
        return loaded.finding(rule, Severity.ERROR, path, message, fix, key=key)

    for path_key, name_key in _CLASS_KEYS.items():
        given, named = loaded.settings.get(path_key), loaded.settings.get(name_key)
        if given is None or not isinstance(given.value, str):
            continue
        text = given.value.removeprefix("file://")
        in_package = text.startswith("pkg://")
        path = _module_file(code, text[6:]) if in_package else Path(text)
        if path is None or not path.is_absolute():
            continue
        if not is_there(path.is_file):
            if here or in_package:
                message = f"{path_key}: {shown(given.value)} is not there"
                yield error("named-file", given.path, path_key, message, "name an existing file")
        elif (
            named is not None
            and isinstance(named.value, str)
            and (defined := definitions_in(path))
            and defined.lacks(named.value)
        ):
            message = f"{shown_path(path)} does not define {named.value}, which {name_key} names"
            fix = (
                f"set overrides.{name_key} to {nearest(named.value, defined.names) or 'a class of the file'}"
            )
            yield error("named-class", named.path, name_key, message, fix)


def _module_file(code: Path | None, dotted: str) -> Path | None:
    """Return the file of a module whose package is in the tree."""
    parts = dotted.replace("/", ".").split(".")
    if code is None or not (code / parts[0]).is_dir():
        return None
    base = code.joinpath(*parts)
    package = base / "__init__.py"
    return package if package.is_file() else base.with_name(base.name + ".py")


def _chat_template(loaded: LoadedRecipe) -> Iterator[Finding]:
    given = loaded.settings.get(_TEMPLATE)
    text = given.value if given else None
    if given and isinstance(text, str) and text.strip() and "{" not in text:
        message = (
            f"{_TEMPLATE} is the template's text, not the file it is in, and {shown(text)} would be every prompt "
            "(verl/workers/fsdp_workers.py:278@55e3c5b)"
        )
        fix = f"set overrides.{_TEMPLATE} to the content of the file"
        yield loaded.finding("chat-template", Severity.ERROR, given.path, message, fix, key=_TEMPLATE)
