"""The files and functions that a recipe names: whether they are there, and can be what they are for.

Code is looked at wherever the recipe is judged, since it lies in the tree or beside the recipe. The model, its
checkpoint and the data lie on the machines of the run, so they are looked at only there.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from npu_rl.config.finding import Finding, Severity
from npu_rl.config.problems import KeyPath, shown
from npu_rl.config.suggest import nearest
from npu_rl.errors import UsageError
from npu_rl.judgement import reward_function
from npu_rl.masking import without_passwords
from npu_rl.recipes.load_recipe import LoadedRecipe
from npu_rl.recipes.recipe_paths import absolute, function_file, is_outside, split_function
from npu_rl.recipes.trainer_settings import flatten_mappings, list_settings
from npu_rl.trainer_code.source_index import Module, SourceIndex

RULES = (
    "reward-function-file",
    "reward-function-name",
    "reward-function-arguments",
    "named-file",
    "named-class",
    "chat-template",
    "model-path",
    "model-checkpoint",
    "data-file",
)
"""The ids of the findings here."""

# Keys of a file and of a name in it, which verl's load_extern_type reads (verl/utils/import_utils.py @ 55e3c5b:83).
_TYPES = {
    "data.custom_cls.path": "data.custom_cls.name",
    "data.sampler.class_path": "data.sampler.class_name",
    "data.datagen.path": "data.datagen.name",
}
_TEMPLATE = "actor_rollout_ref.model.custom_chat_template"
_LONGEST = 160  # letters of a path in a message
_REWARD_KWARGS = "reward_model.reward_kwargs"


def named_file_findings(loaded: LoadedRecipe, code: Path | None, here: bool) -> list[Finding]:
    """What is wrong with the files that a recipe names.

    Args:
        loaded: The recipe.
        code: The workspace's code folder; without one, its files are not looked at.
        here: Whether this machine will run it, so that it has to have the model and the data.
    """
    files = _Files(loaded, code, here)
    found = [*files.of_reward(), *files.of_types(), *files.of_template()]
    return [*found, *files.of_model(), *files.of_data()] if here else found


class _Files:
    def __init__(self, loaded: LoadedRecipe, code: Path | None, here: bool) -> None:
        self._loaded = loaded
        self._recipe = loaded.recipe
        self._base = loaded.path.parent
        self._code = code
        self._here = here
        self._given = {setting.key: setting for setting in flatten_mappings(list_settings(loaded.recipe))}

    # -- the reward function

    def of_reward(self) -> Iterator[Finding]:
        named = self._recipe.reward.function
        if named is None:
            return
        file, name = split_function(named)
        if not is_outside(file) and self._code is None:
            return
        key: KeyPath = ("reward", "function")
        try:
            path = function_file(file, self._code or Path(), self._base)
        except UsageError as error:  # of ~NOBODY
            yield self._error(
                "reward-function-file", key, f"{error.what}: {error.why}", "name an existing file"
            )
            return
        if not _holds(path.is_file):
            if self._is_expected(file, path):
                near = self._near_file(file, path)
                fix = f"set reward.function to {near}:{name}" if near else "name an existing file"
                what = "is a folder" if _holds(path.is_dir) else "is not there"
                message, certain = f"the file {self._place_of(file, path)} {what}", self._is_certain(file)
                yield self._error("reward-function-file", key, message, fix, certain=certain)
            return
        defined = reward_function.defined_in(path)
        if defined is None:
            message = f"{self._place_of(file, path)} can't be read as Python"
            yield self._error("reward-function-file", key, message, "correct its syntax", certain=False)
        elif name in defined.names:
            yield from self._arguments(file, name, path, defined)
        elif not defined.open:
            near = nearest(name, defined.names) or (
                defined.callables[0] if len(defined.callables) == 1 else ""
            )
            fix = f"set reward.function to {file}:{near}" if near else "name a function of the file"
            names = ", ".join(defined.callables[:6]) or "no function"
            message = f"{self._place_of(file, path)} does not define {name}; it has {names}"
            yield self._error("reward-function-name", key, message, fix)

    def _place_of(self, file: str, path: Path) -> str:
        return _shown(path) if is_outside(file) else f"{shown(file)} of the workspace's code"

    def _arguments(
        self, file: str, name: str, path: Path, defined: reward_function.Defined
    ) -> Iterator[Finding]:
        """Whether the reward manager can call it."""
        if self._code is None:
            return
        function, module = defined.functions.get(name), None
        if function is None:
            followed = reward_function.imported_function(path, self._code, name)
            if followed is None:
                return
            module, function = followed
        place = f"{module.file if module else path.name}:{function.lineno}"
        extra = self._recipe.reward.arguments
        manager = str(self._value("reward_model.reward_manager") or "naive")
        for word in () if function.args.kwarg else sorted(set(extra) - _parameters(function)):
            near = nearest(word, _parameters(function))
            message = f"{name} takes no argument {word} ({place})"
            fix = f"write {near} for {word}" if near else f"remove reward.arguments.{word}"
            yield self._error("reward-function-arguments", ("reward", "arguments", word), message, fix)
        if module is not None:
            yield from self._values(function, module)
        more = any(key.startswith(_REWARD_KWARGS) for key in self._given)
        for call in reward_function.manager_calls(self._code, manager):
            unknown, missing = reward_function.refused_arguments(function, call, ())
            missing = [] if more else [word for word in missing if word not in extra]
            if unknown or missing:
                what = [f"does not take {', '.join(unknown)}"] if unknown else []
                what += [f"needs {', '.join(missing)}"] if missing else []
                message = (
                    f"{name} {' and '.join(what)}, and the reward manager {manager} calls it with "
                    f"{', '.join(sorted(call.keywords))} ({call.where})"
                )
                fix = self._fitting_manager(function, extra) or (
                    f"give {name} the arguments {', '.join(sorted(call.keywords))}, or **kwargs, at "
                    f"{module.file if module else file}:{function.lineno}"
                )
                yield self._error("reward-function-arguments", ("reward", "function"), message, fix)
                return

    def _values(self, function: ast.FunctionDef, module: Module) -> Iterator[Finding]:
        """The recipe's arguments that the function raises on, as far as its code shows."""
        assert self._code is not None
        texts = {
            word: value
            for word, value in self._recipe.reward.arguments.items()
            if isinstance(value, str) and value and word in _parameters(function)
        }
        if not texts:
            return
        from npu_rl.trainer_keys.value_flow import ValueFlow, ValueUse

        flow = ValueFlow(SourceIndex(self._code))
        for word, value in texts.items():
            uses = list(flow.follow(ValueUse(module, function, None, {word: math.inf})))
            names = [name for _, one in uses for name in one.compared_names()]
            refused = [
                (use.module.file, refusal) for use, one in uses if (refusal := one.find_refusal(value))
            ]
            if not refused or not names or value in names:
                continue
            near, (at, refusal) = nearest(value, names), refused[0]
            message = f"must be one of {', '.join(names)}, not {shown(value)} ({at}:{refusal.line})"
            fix = f"set reward.arguments.{word} to {near}" if near else f"remove reward.arguments.{word}"
            yield self._error("reward-function-arguments", ("reward", "arguments", word), message, fix)

    def _fitting_manager(self, function: ast.FunctionDef, extra: Iterable[str]) -> str:
        """The manager of the tree that calls with the function's arguments; none for one that takes anything."""
        assert self._code is not None
        calls = reward_function.manager_calls(self._code)
        for call in sorted(
            calls, key=lambda one: one.manager != "naive"
        ):  # the trainer's default adds nothing
            unknown, missing = reward_function.refused_arguments(function, call, ())
            if not unknown and not set(missing) - set(extra) and call.keywords:
                return (
                    f"set reward.manager to {call.manager}, which calls with these arguments ({call.where})"
                )
        return ""

    # -- classes by their file

    def of_types(self) -> Iterator[Finding]:
        for path_key, name_key in _TYPES.items():
            given = self._given.get(path_key)
            if given is None or not isinstance(given.value, str):
                continue
            text = given.value.removeprefix("file://")
            path = self._module(text[6:]) if text.startswith("pkg://") else Path(text)
            if path is None or not path.is_absolute():
                continue
            if not _holds(path.is_file):
                if text.startswith("pkg://") or self._is_expected(text, path):
                    message = f"{path_key}: {shown(given.value)} is not there"
                    yield self._error(
                        "named-file", given.path, message, "name an existing file", key=path_key
                    )
                continue
            defined, name = reward_function.defined_in(path), self._value(name_key)
            if defined and isinstance(name, str) and name not in defined.names and not defined.open:
                near = nearest(name, defined.names)
                message = f"{_shown(path)} does not define {name}, which {name_key} names"
                fix = f"set overrides.{name_key} to {near or 'a class of the file'}"
                yield self._error("named-class", self._given[name_key].path, message, fix, key=name_key)

    def of_template(self) -> Iterator[Finding]:
        given = self._given.get(_TEMPLATE)
        text = given.value if given else None
        if given and isinstance(text, str) and text.strip() and "{" not in text:
            message = (
                f"{_TEMPLATE} is the template's text, not the file it is in, and {shown(text)} would be every prompt "
                "(verl/workers/fsdp_workers.py:278@55e3c5b)"
            )
            fix = f"set overrides.{_TEMPLATE} to the content of the file"
            yield self._error("chat-template", given.path, message, fix, certain=False, key=_TEMPLATE)

    def _module(self, dotted: str) -> Path | None:
        """The file of a module whose package is in the tree."""
        parts = dotted.replace("/", ".").split(".")
        if self._code is None or not (self._code / parts[0]).is_dir():
            return None
        base = self._code.joinpath(*parts)
        package = base / "__init__.py"
        return package if package.is_file() else base.with_name(base.name + ".py")

    # -- the model and the data

    def of_model(self) -> Iterator[Finding]:
        model = self._recipe.model
        place = self._place(model.path)
        if place is not None and not _holds(place.is_dir):
            yield self._error(
                "model-path", ("model", "path"), f"there is no folder {_shown(place)}", _NAME_IT
            )
        elif place is not None and not _holds((place / "config.json").is_file):
            fix = "name a folder in Hugging Face's layout"
            yield self._error("model-path", ("model", "path"), f"{_shown(place)} has no config.json", fix)
        place = self._place(model.checkpoint) if self._recipe.megatron else None
        if place is not None and not _holds(place.is_dir):
            message = f"there is no folder {_shown(place)}"
            yield self._error("model-checkpoint", ("model", "checkpoint"), message, _NAME_IT)

    def of_data(self) -> Iterator[Finding]:
        for part, files in (("train", self._recipe.data.train), ("test", self._recipe.data.test)):
            for index, given in enumerate(files or ()):
                place = self._place(given)
                if place is not None and not _holds(place.exists):
                    yield self._error(
                        "data-file", ("data", part, index), f"there is no {_shown(place)}", _NAME_IT
                    )

    def _place(self, given: str | None) -> Path | None:
        """The place on this machine that a path names; None for a name on a hub, another file system, or ~NOBODY."""
        if given is None or not is_outside(given):
            return None
        try:
            return Path(absolute(given, self._base))
        except UsageError:  # rendering tells it
            return None

    # -- helpers

    def _is_expected(self, named: str, path: Path) -> bool:
        """Whether a file that is not there is missing: not one of a file system that this machine lacks."""
        if self._here or not named.startswith(("/", "~")):
            return True
        return path.parent != Path(path.anchor) and _holds(path.parent.is_dir)

    def _is_certain(self, named: str) -> bool:
        """Whether no other machine can have what this one lacks."""
        return not named.startswith(("/", "~"))

    def _near_file(self, named: str, path: Path) -> str:
        """A Python file that was likely meant, written as the recipe writes it."""
        folder = path.parent
        names = [file.name for file in folder.glob("*.py")] if _holds(folder.is_dir) else []
        near = nearest(path.name, names)
        return f"{named[: len(named) - len(path.name)]}{near}" if near else ""

    def _value(self, key: str) -> object:
        return self._given[key].value if key in self._given else None

    def _error(
        self, rule: str, path: KeyPath, message: str, fix: str, *, certain: bool = True, key: str = ""
    ) -> Finding:
        return Finding(rule, Severity.ERROR, path, key, message, fix, self._loaded.where(*path), certain)


_NAME_IT = "name one that every node of the run has"


def _holds(test: Callable[[], bool]) -> bool:
    """A test of a path; False where it can't be asked: no permission, a name longer than the file system's."""
    try:
        return test()
    except (OSError, ValueError):
        return False


def _shown(path: Path) -> str:
    """A path as it may be printed; of a long one its end, which tells more."""
    text = repr(without_passwords(str(path)))
    return text if len(text) <= _LONGEST else f"'...{text[-_LONGEST:]}"


def _parameters(function: ast.FunctionDef) -> set[str]:
    arguments = function.args
    return {argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)}
