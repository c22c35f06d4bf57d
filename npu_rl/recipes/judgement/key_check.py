"""Check of a recipe's keys and values against the code of a tree.

Nothing of that code is imported or run. Whether the sizes fit is left to `plan`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.common.yaml_documents.problems import KeyPath, dotted
from npu_rl.common.yaml_documents.suggest import nearest
from npu_rl.recipes.judgement.unsupported import find_unsupported
from npu_rl.recipes.plan.benchmark_only import HINT, find_benchmark_settings
from npu_rl.recipes.recipe.key_map import allowed_names, check_range, recipe_key_of
from npu_rl.recipes.recipe.reserved_keys import find_replacement, reserved_keys
from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.recipes.recipe.trainer_settings import (
    MODEL_ENGINE,
    OVERRIDES,
    Setting,
    config_location,
    config_name,
    flatten_mappings,
    keys_without_effect,
    last_settings,
    list_settings,
    settings_of,
)
from npu_rl.recipes.trainer_code.adaptation_switches import known_switches
from npu_rl.recipes.trainer_code.answer_cache import AnswerCache
from npu_rl.recipes.trainer_code.config_location import FolderFault, folders_with
from npu_rl.recipes.trainer_code.config_tree import ConfigFault, ConfigTree, ModuleFault
from npu_rl.recipes.trainer_keys.key_resolver import KeyResolver
from npu_rl.recipes.trainer_keys.resolution import KeyResolution

_STRATEGY = "actor_rollout_ref.actor.strategy"
_BACKEND = {"fsdp2": "fsdp"}  # strategies whose configuration files are those of another
_FAULTY_KEYS = {ModuleFault: "module", FolderFault: "config_path"}


class RecipeWithOrigins(Protocol):
    """A loaded recipe and the origin of each of its keys."""

    @property
    def recipe(self) -> Recipe:
        """The recipe."""

    def where(self, *path: str | int) -> str:
        """Return where a key was set, as file:line."""


def read_trainer(
    recipe: Recipe, code: Path | None, answers: AnswerCache | None = None
) -> KeyResolver | ConfigFault | None:
    """Read the trainer's configuration in a code folder, once.

    Returns:
        The resolver of its keys, the fault that prevents reading it, or None without a folder.
    """
    if code is None:
        return None
    given = {key: setting.value for key, setting in settings_of(recipe).items()}
    if recipe.reward.function is not None:  # rendered only when a run knows its folders
        given["custom_reward_function.path"] = recipe.reward.function
    try:
        off = [slug for slug, on in recipe.adaptations.items() if not on]
        return KeyResolver(code, config_location(recipe), given, off, answers)
    except ConfigFault as fault:
        return fault


def check_keys(
    loaded: RecipeWithOrigins, trainer: KeyResolver | ConfigFault | None, code: Path | None
) -> list[Finding]:
    """Check a recipe's keys and values, and return the findings.

    Args:
        loaded: The recipe.
        trainer: The result of `read_trainer`; without a workspace (None) less is checked.
        code: The workspace's code folder, if there is one.
    """
    return KeyChecker(loaded, trainer, code).findings()


class KeyChecker:
    """Collects the findings on a recipe's keys and values."""

    def __init__(
        self, loaded: RecipeWithOrigins, trainer: KeyResolver | ConfigFault | None, code: Path | None
    ) -> None:
        self._loaded = loaded
        self._recipe = loaded.recipe
        self._trainer = trainer
        self._code = code
        self._found: list[Finding] = []
        self._settings = list(flatten_mappings(list_settings(loaded.recipe)))
        self._last = last_settings(self._settings)

    def findings(self) -> list[Finding]:
        """Run all checks and return the findings."""
        self._check_effect()
        self._check_reserved()
        self._check_set_twice()
        self._check_adaptations()
        self._check_benchmark()
        self._check_unsupported()
        if not any(found.path == ("trainer", "module") for found in self._found):
            self._check_fault()  # of a trainer that recipes can have
        # The keys of another backend would all be unknown.
        if isinstance(self._trainer, KeyResolver) and self._has_files_of_strategy(self._trainer.tree):
            self._check_keys(self._trainer)
        return self._found

    def _check_fault(self) -> None:
        """Report that the trainer's configuration can't be read, with the reason."""
        if isinstance(self._trainer, ConfigFault):
            fault = self._trainer
            path = ("trainer", _FAULTY_KEYS.get(type(fault), "config"))
            self._error(path, "", f"{fault} ({fault.where})", "trainer-config", self._suggest_folder())

    def _suggest_folder(self) -> str:
        """Suggest another folder of the code that has the configuration; empty if there isn't exactly one."""
        folders, own = [], None
        if self._code is not None:
            folders = folders_with(self._code, config_name(self._recipe))
            own = self._own_folder(self._code)
        others = [folder for folder in folders if self._code and (self._code / folder).resolve() != own]
        return f"set trainer.config_path to {others[0]}" if len(folders) == len(others) == 1 else ""

    def _own_folder(self, code: Path) -> Path | None:
        """Return the folder that is searched for the run's configuration; None if it is missing."""
        try:
            return config_location(self._recipe).find_folder(code)
        except ConfigFault:
            return None

    def _has_files_of_strategy(self, tree: ConfigTree) -> bool:
        """Return whether the tree's `model_engine` chooses the files of the recipe's backend; report it if not."""
        entry, engine = tree.entries.get(_STRATEGY), tree.choices.get(MODEL_ENGINE)
        strategy = self._last[_STRATEGY].value
        if engine is None or entry is None or entry.interpolation:
            return True
        if _BACKEND.get(strategy, strategy) == _BACKEND.get(entry.value, entry.value):
            return True
        message = f"{MODEL_ENGINE} {engine} is for the strategy {entry.value} ({entry.where}), and actor.strategy is "
        path, fix = ("actor", "strategy"), ""
        if MODEL_ENGINE in self._recipe.overrides:
            path = (OVERRIDES, MODEL_ENGINE)
            fix = f"leave out overrides.{MODEL_ENGINE}, which follows from actor.strategy"
        elif self._recipe.trainer.config:
            path, fix = ("trainer", "config"), "leave out trainer.config, which follows from actor.strategy"
        self._error(path, MODEL_ENGINE, f"{message}{strategy}", "invalid-value", fix)
        return False

    def _check_keys(self, resolver: KeyResolver) -> None:
        for setting in self._settings:
            resolution = resolver.resolve(setting.key)
            if not resolution.known:
                self._report_unknown(setting, resolution)
                continue
            if resolution.message:
                self._note(setting.path, setting.key, resolution.message, "key-read-elsewhere")
            if resolution.section:
                self._check_section(setting, resolver)
            else:
                self._check_value(setting, resolution, resolver)

    def _report_unknown(self, setting: Setting, resolution: KeyResolution) -> None:
        fix = ""
        if resolution.right:
            right = recipe_key_of(resolution.right) or f"{OVERRIDES}.{resolution.right}"
            fix = f"write {right} in place of {_typed(setting.path)}"
        self._error(setting.path, setting.key, resolution.message, "unknown-key", fix)

    def _check_value(self, setting: Setting, resolution: KeyResolution, resolver: KeyResolver) -> None:
        """Report the first fault of a value: its type, its range, or that the code raises on it."""
        value, where = setting.value, f" ({resolution.where})" if resolution.where else ""
        if wrong := resolution.expected.mismatch(value):
            fix = self._suggest_value(setting, value, resolution.expected.choices)
            self._error(setting.path, setting.key, f"{wrong}{where}", "invalid-value", fix)
        elif setting.from_overrides and (outside := check_range(setting.key, value)):
            certain = recipe_key_of(setting.key) is not None
            message = f"{outside}, not {value}"
            self._error(setting.path, setting.key, message, "invalid-value", certain=certain)
        elif refused := resolver.find_refused(setting.key, value):
            refused = replace(refused, names=self._names_of_recipe_key(setting, refused.names))
            fix = self._suggest_value(setting, refused.value, refused.names)
            message = f"{refused} ({refused.where})"
            self._error(setting.path, setting.key, message, "invalid-value", fix, refused.certain)

    def _names_of_recipe_key(self, setting: Setting, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return those accepted names that the recipe's own key also allows; all names for a key under `overrides`."""
        own = () if setting.from_overrides else allowed_names(_typed(setting.path))
        return tuple(name for name in names if name in own) or names

    def _suggest_value(self, setting: Setting, wrong: Any, names: Collection[str]) -> str:
        near = nearest(wrong, names) if isinstance(wrong, str) else None
        if len(names) == 1:
            (near,) = names
        if near is None:
            return ""
        if near == "float16" and "16" not in str(wrong) and "bfloat16" in names:
            near = (
                "bfloat16"  # for float32, whose range it has; difflib finds float16 nearer, which overflows
            )
        given = setting.value
        right = [near if item == wrong else item for item in given] if isinstance(given, list) else near
        text = f"[{', '.join(map(str, right))}]" if isinstance(right, list) else right
        return f"set {_typed(setting.path)} to {text}"

    def _check_section(self, setting: Setting, resolver: KeyResolver) -> None:
        """Report a section whose value is neither a mapping nor empty."""
        if setting.value is None or setting.value == {}:
            return
        names = ", ".join(resolver.tree.children(setting.key)[:6])
        message = f"{setting.key} is a section, not a value" + (f"; it has {names}, ..." if names else "")
        self._error(setting.path, setting.key, message, "invalid-value")

    def _check_effect(self) -> None:
        backend = self._recipe.actor.strategy
        for path in keys_without_effect(self._recipe):
            self._error(path, "", f"{dotted(path)} has no effect with {backend}", "key-without-effect")

    def _check_reserved(self) -> None:
        reserved = reserved_keys(self._recipe)
        for setting in self._settings:
            instead = find_replacement(setting.key, reserved) if setting.from_overrides else None
            if instead is not None:
                message = f"{setting.key} is npu-rl's to set: {instead}"
                self._error(setting.path, setting.key, message, "reserved-key")

    def _check_set_twice(self) -> None:
        """Report an override of a key that a section of the recipe also sets."""
        by_section = {setting.key: setting for setting in self._settings if not setting.from_overrides}
        for setting in self._settings:
            first = by_section.get(setting.key)
            if setting.from_overrides and first and self._written(first.path):
                message = (
                    f"{first.origin} sets this key too ({self._loaded.where(*first.path)}); the override wins"
                )
                self._note(setting.path, setting.key, message, "key-set-twice")

    def _written(self, path: KeyPath) -> bool:
        """Return whether the key was written in a file, rather than set by the schema's default."""
        model: Any = self._recipe
        for name in path:
            if not hasattr(model, "model_fields_set"):
                return True
            if name not in model.model_fields_set:
                return False
            model = getattr(model, str(name))
        return True

    def _check_adaptations(self) -> None:
        wanted = self._recipe.adaptations
        if not wanted:
            return
        known = known_switches(self._code, wanted)
        for slug in wanted:
            if slug not in known:
                names = ", ".join(sorted(known)) or "none"
                near = nearest(slug, known)
                fix = f"write adaptations.{near} in place of adaptations.{slug}" if near else ""
                message = f"unknown adaptation {slug!r} (known: {names})"
                self._error(("adaptations", slug), "", message, "unknown-adaptation", fix)

    def _check_benchmark(self) -> None:
        """Report settings that only a benchmark may have, unless the recipe is one."""
        if self._recipe.benchmark:
            return
        for fault in find_benchmark_settings(self._recipe, self._last):
            self._error(fault.path, fault.key, fault.message, "benchmark-only", HINT)

    def _check_unsupported(self) -> None:
        """Report settings of features without recipe keys, with the reason, unless the tree doesn't know the key."""
        trainer = self._trainer if isinstance(self._trainer, KeyResolver) else None
        for fault in find_unsupported(self._recipe, self._last):
            if trainer is None or not fault.key or trainer.resolve(fault.key).known:
                self._error(fault.path, fault.key, fault.message, "unsupported", fault.fix)

    def _error(
        self, path: KeyPath, key: str, message: str, rule: str, fix: str = "", certain: bool = True
    ) -> None:
        # the actor's and the reference's keys often come from one line of the recipe: report it once
        if not any(found.path == path and found.message == message for found in self._found):
            self._add(Severity.ERROR, path, key, message, rule, fix, certain)

    def _note(self, path: KeyPath, key: str, message: str, rule: str) -> None:
        self._add(Severity.NOTE, path, key, message, rule, "")

    def _add(
        self,
        severity: Severity,
        path: KeyPath,
        key: str,
        message: str,
        rule: str,
        fix: str,
        certain: bool = True,
    ) -> None:
        where = self._loaded.where(*path)
        self._found.append(Finding(rule, severity, path, key, message, fix, where, certain))


def _typed(path: KeyPath) -> str:
    """Return a key as it is written on a command line."""
    return ".".join(map(str, path))
