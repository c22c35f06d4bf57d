"""Check of a recipe's keys against the code of a tree: Hydra composes its configuration, and nothing is imported.

Values are left to the trainer's own code (`trainer_probe.py`), and whether the sizes fit to `plan`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.common.yaml_documents.problems import KeyPath, dotted, shown
from npu_rl.common.yaml_documents.suggest import nearest
from npu_rl.recipes.judgement.unsupported import find_unsupported
from npu_rl.recipes.plan.benchmark_only import HINT, find_benchmark_settings
from npu_rl.recipes.recipe.key_map import check_range, recipe_key_of
from npu_rl.recipes.recipe.reserved_keys import find_replacement, reserved_keys
from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.recipes.recipe.trainer_command import hydra_text
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
from npu_rl.recipes.trainer_code.config_location import FolderFault, folders_with
from npu_rl.recipes.trainer_code.config_tree import ConfigFault, ConfigTree, ModuleFault
from npu_rl.recipes.trainer_keys.key_resolver import KeyResolution, KeyResolver

_STRATEGY = "actor_rollout_ref.actor.strategy"
_BACKEND = {"fsdp2": "fsdp"}  # strategies whose configuration files are those of another
VALUES = "trainer-value"
"""Id of what the trainer's own code raises on a value."""
_FAULTY_KEYS = {ModuleFault: "module", FolderFault: "config_path"}


class RecipeWithOrigins(Protocol):
    """A loaded recipe and the origin of each of its keys."""

    @property
    def recipe(self) -> Recipe:
        """The recipe."""

    def where(self, *path: str | int) -> str:
        """Return where a key was set, as file:line."""


def read_trainer(recipe: Recipe, code: Path | None) -> KeyResolver | ConfigFault | None:
    """Compose the trainer's configuration in a code folder, once.

    Returns:
        The resolver of its keys, the fault that prevents it, or None without a folder.
    """
    if code is None:
        return None
    settings = [(key, hydra_text(setting.value)) for key, setting in settings_of(recipe).items()]
    try:
        return KeyResolver(code, config_location(recipe), settings)
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
    checker = KeyChecker(loaded, trainer, code)
    return checker.own_findings() if loaded.recipe.has_own_keys else checker.findings()


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

    def own_findings(self) -> list[Finding]:
        """Run the checks of a trainer with its own keys and return the findings. `trainer.validate` judges the rest."""
        self._check_reserved()
        self._check_set_twice()
        self._check_cluster()
        self._check_adaptations()
        self._check_fault()
        if isinstance(self._trainer, KeyResolver):
            self._check_classes(self._trainer)
            for setting in (*self._settings, *_named_keys(self._recipe)):
                self._check_own_key(setting, self._trainer)
        return self._found

    def _check_own_key(self, setting: Setting, resolver: KeyResolver) -> None:
        """Report a key that neither the configuration nor the file of its section's class has."""
        if setting.key in resolver.tree.entries:
            return
        *above, name = parts = setting.key.split(".")
        heads = {
            *resolver.tree.children(""),
            *(one.partition(".")[0] for one in self._recipe.trainer.sections),
        }
        section, names = "", frozenset(heads)
        what = "the trainer's configuration has no section"
        for pattern, dotted_class in self._recipe.trainer.sections.items():
            around = pattern.split(".")
            if len(around) == len(above) and all(a in ("*", b) for a, b in zip(around, above, strict=True)):
                section, names = ".".join(above), resolver.names_around(dotted_class)
                what = f"{dotted_class.rpartition('.')[2]} has no"
        unknown = name if section else parts[0]
        if not names or unknown.replace("-", "_") in names or unknown in names:
            return
        near = nearest(unknown, names)
        right = f"{section}.{near}" if section else ".".join((near or "", *parts[1:]))
        under = f"{OVERRIDES}." if setting.from_overrides else ""
        fix = f"write {under}{right} in place of {under}{setting.key}" if near else ""
        self._error(
            setting.path, setting.key, f"unknown key {setting.key}: {what} {unknown}", "unknown-key", fix
        )

    def _check_classes(self, resolver: KeyResolver) -> None:
        for section, dotted_class in self._recipe.trainer.sections.items():
            if not resolver.names_around(dotted_class):
                message = f"the code has no class {dotted_class}"
                self._error(("trainer", "sections", section), "", message, "trainer-class")

    def _check_cluster(self) -> None:
        """Report an override of a size that differs from the recipe's cluster."""
        by_word = {one.key: one for one in self._settings if one.path[0] == "cluster"}
        for setting in self._settings:
            word = by_word.get(setting.key)
            if setting.from_overrides and word and setting.value != word.value:
                message = f"{setting.key} is {setting.value}, and {word.origin} gives {word.value}"
                fix = f"remove {OVERRIDES}.{setting.key}, or set {word.origin} to fit it"
                self._error(setting.path, setting.key, message, "cluster-size", fix)

    def _check_fault(self) -> None:
        """Report that the trainer's configuration can't be read, with the reason."""
        if isinstance(self._trainer, ConfigFault):
            fault = self._trainer
            path = ("trainer", _FAULTY_KEYS.get(type(fault), "config"))
            folders = folders_with(self._code, config_name(self._recipe)) if self._code else []
            other = folders[0] if len(folders) == 1 and folders[0] not in fault.where else ""
            fix = f"set trainer.config_path to {other}" if other else ""
            self._error(path, "", f"{fault} ({fault.where})", "trainer-config", fix)

    def _has_files_of_strategy(self, tree: ConfigTree) -> bool:
        """Return whether the tree's `model_engine` chooses the files of the recipe's backend; report it if not."""
        entry, engine = tree.entries.get(_STRATEGY), tree.choices.get(MODEL_ENGINE)
        strategy = self._last[_STRATEGY].value
        if engine is None or entry is None or entry.interpolation:
            return True
        if _BACKEND.get(strategy, strategy) == _BACKEND.get(entry.value, entry.value):
            return True
        message = f"{MODEL_ENGINE} {engine} is for the strategy {entry.value}, and actor.strategy is "
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
            elif resolution.section:
                self._check_section(setting, resolver)
            else:
                self._check_value(setting, resolver.tree)
                self._check_json(setting, resolver)

    def _check_json(self, setting: Setting, resolver: KeyResolver) -> None:
        """Report unknown names in a section that is given as text, as on vLLM's command line."""
        if not resolver.is_library_section(setting.key) or not str(setting.value).startswith("{"):
            return
        try:
            inner = replace(setting, value=json.loads(setting.value))
        except (ValueError, RecursionError) as error:
            self._error(setting.path, setting.key, f"invalid JSON: {error}", "invalid-value")
            return
        for one in flatten_mappings([inner]):
            resolution = resolver.resolve(one.key)
            if not resolution.known:
                self._report_unknown(replace(one, path=setting.path), resolution)

    def _report_unknown(self, setting: Setting, resolution: KeyResolution) -> None:
        fix = ""
        if resolution.right:
            right = recipe_key_of(resolution.right) or f"{OVERRIDES}.{resolution.right}"
            fix = f"write {right} in place of {_typed(setting.path)}"
        self._error(setting.path, setting.key, resolution.message, "unknown-key", fix)

    def _check_value(self, setting: Setting, tree: ConfigTree) -> None:
        """Report the first fault of a value: Hydra can't set it, or it has another type or range than the default."""
        entry = tree.entries.get(setting.key)
        wrong = tree.refused.get(setting.key) or (_mismatch(entry.value, setting.value) if entry else None)
        if not wrong and setting.from_overrides and (outside := check_range(setting.key, setting.value)):
            wrong = f"{outside}, not {setting.value}"
        if wrong:
            self._error(setting.path, setting.key, wrong, "invalid-value")

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
                where = self._loaded.where(*setting.path)
                note = Finding("key-set-twice", Severity.NOTE, setting.path, setting.key, message, "", where)
                self._found.append(note)

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

    def _error(self, path: KeyPath, key: str, message: str, rule: str, fix: str = "") -> None:
        # the actor's and the reference's keys often come from one line of the recipe: report it once
        if not any(found.path == path and found.message == message for found in self._found):
            where = self._loaded.where(*path)
            self._found.append(Finding(rule, Severity.ERROR, path, key, message, fix, where))


def _named_keys(recipe: Recipe) -> Iterator[Setting]:
    """Yield the keys of the trainer that `trainer` names apart from those that the recipe sets."""
    trainer = recipe.trainer
    yield from (Setting(key, value, ("trainer", "resume", key)) for key, value in trainer.resume.items())
    yield from (Setting(key, None, ("trainer", "paths", index)) for index, key in enumerate(trainer.paths))
    written = trainer.keys.checkpoint if trainer.keys else None
    for name in ("folder", "load"):
        path = ("trainer", "keys", "checkpoint", name)
        yield from (Setting(key, None, path) for key in getattr(written, name, None) or ())
    for word in type(trainer.layout).model_fields if trainer.layout else ():
        if key := getattr(trainer.layout, word):
            yield Setting(key, None, ("trainer", "layout", word))


def _mismatch(default: Any, value: Any) -> str | None:
    """Return why a value has another type than a default that is a switch or a number; None if it may be valid."""
    if value is None or (isinstance(value, str) and "${" in value):
        return None
    if isinstance(default, bool):
        wanted, fits = "true or false", isinstance(value, bool) or value in (0, 1)
    else:
        wanted, fits = "a number", isinstance(value, (int, float)) and not isinstance(value, bool)
    if fits or not isinstance(default, (bool, int, float)):
        return None
    return f"must be {wanted}, not {shown(value) if isinstance(value, str) else str(value).lower()}"


def _typed(path: KeyPath) -> str:
    """Return a key as it is written on a command line."""
    return ".".join(map(str, path))
