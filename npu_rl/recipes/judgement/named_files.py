"""Check that the files and functions that a recipe names exist and can be used.

Code lies in the tree or beside the recipe, so it is checked wherever the recipe is judged. The model, its checkpoint
and the data lie on the machines of the run, so that they are missing is an error only there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from npu_rl.common.errors import UsageError
from npu_rl.common.masking import without_passwords
from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.common.yaml_documents.problems import KeyPath, shown
from npu_rl.common.yaml_documents.suggest import nearest
from npu_rl.recipes.judgement.file_definitions import definitions_in
from npu_rl.recipes.judgement.missing_files import is_expected_here, prepare_command
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.recipes.recipe.recipe_paths import absolute, function_file, is_outside, split_function
from npu_rl.recipes.sizing.model_config import differing_sizes_in

RULES = (
    "reward-function-file",
    "reward-function-name",
    "named-file",
    "named-class",
    "chat-template",
    "model-path",
    "weights-architecture",
    "model-checkpoint",
    "data-file",
)
"""Ids of the findings of this module."""

# Key of a file -> key of a class in it; verl's load_extern_type reads both (verl/utils/import_utils.py:83@55e3c5b).
_CLASS_KEYS = {
    "data.custom_cls.path": "data.custom_cls.name",
    "data.sampler.class_path": "data.sampler.class_name",
    "data.datagen.path": "data.datagen.name",
}
_TEMPLATE = "actor_rollout_ref.model.custom_chat_template"
_SHOWN_SIZES = 3
_SHOWN_LENGTH = 160  # characters of a path in a message


def named_file_findings(loaded: LoadedRecipe, code: Path | None, here: bool) -> list[Finding]:
    """Return the findings on the files that a recipe names.

    Args:
        code: The workspace's code folder; None leaves out what lies in it.
        here: Whether the recipe is to run on this machine, so that it needs the model and the data. Elsewhere it is
            noted that they are not in a folder that is here.
    """
    files = _NamedFileCheck(loaded, code, here)
    found = [
        *files.check_reward_function(),
        *files.check_classes(),
        *files.check_chat_template(),
    ]
    if loaded.recipe.has_own_keys:  # it names them in `trainer.paths`
        return found
    return [*found, *files.check_model(), *files.check_data()]


class _NamedFileCheck:
    def __init__(self, loaded: LoadedRecipe, code: Path | None, here: bool) -> None:
        self._loaded = loaded
        self._recipe = loaded.recipe
        self._base = loaded.path.parent
        self._code = code
        self._here = here
        self._settings = loaded.settings

    # -- the reward function

    def check_reward_function(self) -> Iterator[Finding]:
        named = self._recipe.reward.function
        if named is None:
            return
        file, name = split_function(named)
        if not is_outside(file) and self._code is None:
            return
        key: KeyPath = ("reward", "function")
        try:
            path = function_file(file, self._code or Path(), self._base)
        except UsageError as error:  # a ~USER that does not exist
            message = f"{error.what}: {error.why}"
            yield self._error("reward-function-file", key, message, "name an existing file")
            return
        if not _path_test(path.is_file):
            if self._has_to_exist(file, path):
                near = self._near_file(file, path)
                fix = f"set reward.function to {near}:{name}" if near else "name an existing file"
                what = "is a folder" if _path_test(path.is_dir) else "is not there"
                message = f"the file {self._shown_file(file, path)} {what}"
                certain = not file.startswith(("/", "~"))  # a relative path is the same on every machine
                yield self._error("reward-function-file", key, message, fix, certain=certain)
            return
        defined = definitions_in(path)
        if defined is None:
            message = f"{self._shown_file(file, path)} can't be read as Python"
            yield self._error("reward-function-file", key, message, "correct its syntax", certain=False)
        elif name not in defined.names and not defined.may_define_more:
            only = defined.callables[0] if len(defined.callables) == 1 else ""
            near = nearest(name, defined.names) or only
            fix = f"set reward.function to {file}:{near}" if near else "name a function of the file"
            names = ", ".join(defined.callables[:6]) or "no function"
            message = f"{self._shown_file(file, path)} does not define {name}; it has {names}"
            yield self._error("reward-function-name", key, message, fix)

    def _shown_file(self, file: str, path: Path) -> str:
        return _shown(path) if is_outside(file) else f"{shown(file)} of the workspace's code"

    # -- classes named by their file

    def check_classes(self) -> Iterator[Finding]:
        for path_key, name_key in _CLASS_KEYS.items():
            given = self._settings.get(path_key)
            if given is None or not isinstance(given.value, str):
                continue
            text = given.value.removeprefix("file://")
            path = self._module_file(text[6:]) if text.startswith("pkg://") else Path(text)
            if path is None or not path.is_absolute():
                continue
            if not _path_test(path.is_file):
                if text.startswith("pkg://") or self._has_to_exist(text, path):
                    message, fix = f"{path_key}: {shown(given.value)} is not there", "name an existing file"
                    yield self._error("named-file", given.path, message, fix, key=path_key)
                continue
            defined, name = definitions_in(path), self._setting(name_key)
            if not defined or defined.may_define_more:
                continue
            if isinstance(name, str) and name not in defined.names:
                near = nearest(name, defined.names)
                message = f"{_shown(path)} does not define {name}, which {name_key} names"
                fix = f"set overrides.{name_key} to {near or 'a class of the file'}"
                yield self._error("named-class", self._settings[name_key].path, message, fix, key=name_key)

    def check_chat_template(self) -> Iterator[Finding]:
        given = self._settings.get(_TEMPLATE)
        text = given.value if given else None
        if given and isinstance(text, str) and text.strip() and "{" not in text:
            message = (
                f"{_TEMPLATE} is the template's text, not the file it is in, and {shown(text)} would be every prompt "
                "(verl/workers/fsdp_workers.py:278@55e3c5b)"
            )
            fix = f"set overrides.{_TEMPLATE} to the content of the file"
            yield self._error("chat-template", given.path, message, fix, certain=False, key=_TEMPLATE)

    def _module_file(self, dotted: str) -> Path | None:
        """Return the file of a module whose package is in the tree."""
        parts = dotted.replace("/", ".").split(".")
        if self._code is None or not (self._code / parts[0]).is_dir():
            return None
        base = self._code.joinpath(*parts)
        package = base / "__init__.py"
        return package if package.is_file() else base.with_name(base.name + ".py")

    # -- the model and the data

    def check_model(self) -> Iterator[Finding]:
        model = self._recipe.model
        place = self._local_path(model.path)
        if place is not None and not _path_test(place.is_dir):
            yield from self._missing("model-path", ("model", "path"), model.path, place, "folder ")
        elif place is not None and self._here and not _path_test((place / "config.json").is_file):
            fix = "name a folder in Hugging Face's layout"
            yield self._error("model-path", ("model", "path"), f"{_shown(place)} has no config.json", fix)
        elif place is not None and model.architecture:
            yield from self._another_model(place / "config.json", model.architecture)
        place = self._local_path(model.checkpoint) if self._recipe.megatron else None
        if place is not None and not _path_test(place.is_dir):
            key = ("model", "checkpoint")
            yield from self._missing("model-checkpoint", key, model.checkpoint, place, "folder ")

    def _another_model(self, place: Path, architecture: str) -> Iterator[Finding]:
        """Yield an error if a config.json has other sizes than the architecture that the recipe is planned for."""
        if other := differing_sizes_in(place, architecture):
            shown_sizes = ", ".join(other[:_SHOWN_SIZES]) + (", ..." if len(other) > _SHOWN_SIZES else "")
            message = f"{_shown(place)} is not model.architecture {architecture}: {shown_sizes}"
            fix = "set model.path to the folder of that model, or model.architecture to the one in the folder"
            yield self._error("weights-architecture", ("model", "path"), message, fix)

    def check_data(self) -> Iterator[Finding]:
        for part, files in (("train", self._recipe.data.train), ("test", self._recipe.data.test)):
            for index, given in enumerate(files or ()):
                place = self._local_path(given)
                if place is not None and not _path_test(place.exists):
                    command = prepare_command(self._loaded, part, place)
                    yield from self._missing("data-file", ("data", part, index), given, place, "", command)

    def _missing(
        self, rule: str, key: KeyPath, given: str | None, place: Path, what: str, command: str = ""
    ) -> Iterator[Finding]:
        """Report a missing file: an error where the recipe runs, else a note if the file is expected here."""
        fix = f"{command}, or {_NAME_EXISTING}" if command else _NAME_EXISTING
        found = self._error(rule, key, f"there is no {what}{_shown(place)}", fix)
        if self._here:
            yield found
        elif given is not None and is_expected_here(given, place, with_folder=bool(command)):
            message = f"{found.message} on this machine"
            yield replace(found, severity=Severity.NOTE, message=message)

    def _local_path(self, given: str | None) -> Path | None:
        """Return the path on this machine; None for a hub name, a remote file system, or an unknown ~USER."""
        if given is None or not is_outside(given):
            return None
        try:
            return Path(absolute(given, self._base))
        except UsageError:  # reported when the trainer's arguments are rendered
            return None

    # -- helpers

    def _has_to_exist(self, named: str, path: Path) -> bool:
        """Return whether the file must exist here: not if its file system is mounted on other machines only."""
        if self._here or not named.startswith(("/", "~")):
            return True
        return path.parent != Path(path.anchor) and _path_test(path.parent.is_dir)

    def _near_file(self, named: str, path: Path) -> str:
        """Return the Python file that was probably meant, in the recipe's spelling; "" without a similar one."""
        folder = path.parent
        names = [file.name for file in folder.glob("*.py")] if _path_test(folder.is_dir) else []
        near = nearest(path.name, names)
        return f"{named[: len(named) - len(path.name)]}{near}" if near else ""

    def _setting(self, key: str) -> object:
        return self._settings[key].value if key in self._settings else None

    def _error(
        self, rule: str, path: KeyPath, message: str, fix: str, *, certain: bool = True, key: str = ""
    ) -> Finding:
        return self._loaded.finding(rule, Severity.ERROR, path, message, fix, key=key, certain=certain)


_NAME_EXISTING = "name one that every node of the run has"


def _path_test(test: Callable[[], bool]) -> bool:
    """Return the result of a path test; False if the test fails, such as for lack of permission or a long name."""
    try:
        return test()
    except (OSError, ValueError):
        return False


def _shown(path: Path) -> str:
    """Return a path for a message, shortened to its end if it is long."""
    text = repr(without_passwords(str(path)))
    return text if len(text) <= _SHOWN_LENGTH else f"'...{text[-_SHOWN_LENGTH:]}"
