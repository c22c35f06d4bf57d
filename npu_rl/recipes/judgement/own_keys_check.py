"""Check of a trainer's own keys against its configuration files and classes.

Nothing of the code is imported or run. Values are left to the trainer's own validation.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path

from npu_rl.common.masking import without_passwords
from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.common.yaml_documents.problems import KeyPath
from npu_rl.common.yaml_documents.suggest import nearest_names, question
from npu_rl.recipes.judgement.key_check import KeyChecker, RecipeWithOrigins
from npu_rl.recipes.judgement.missing_files import is_expected_here, missing_path, own_prepare_command
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.recipes.recipe.trainer_settings import (
    OVERRIDES,
    Setting,
    config_location,
)
from npu_rl.recipes.trainer_code.answer_cache import AnswerCache
from npu_rl.recipes.trainer_code.config_class import ConfigClass, read_config_class
from npu_rl.recipes.trainer_code.config_tree import ConfigEntry, ConfigFault, ConfigTree
from npu_rl.recipes.trainer_code.load_configuration import load_configuration
from npu_rl.recipes.trainer_code.source_index import SourceIndex

UNREAD = "unread-setting"
VALIDATION, NOT_VALIDATED = "trainer-validation", "trainer-validation-not-run"
RULES = (
    "unknown-key",
    UNREAD,
    VALIDATION,
    NOT_VALIDATED,
    "trainer-class",
    "trainer-config",
    "trainer-path",
    "cluster-size",
)
"""Ids of the findings of this module."""


@dataclass
class OwnTrainer:
    """Facts about a trainer's keys, from the code.

    Attributes:
        tree: The composed configuration files.
        classes: The class of each section that the recipe assigns a class to.
        missing: Sections whose class the code does not have.
        unchecked: Sections in use without a class, and why they are not checked.
    """

    tree: ConfigTree
    sources: SourceIndex
    classes: dict[tuple[str, ...], ConfigClass] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    unchecked: dict[str, str] = field(default_factory=dict)

    def reader_of(self, parts: tuple[str, ...]) -> tuple[int, ConfigClass] | None:
        """Return the class of the deepest section around a key, and the depth of that section."""
        fitting = [
            section
            for section in self.classes
            if len(section) < len(parts)
            and all(name in ("*", part) for name, part in zip(section, parts, strict=False))
        ]
        deepest = max(fitting, key=len, default=None)
        return None if deepest is None else (len(deepest), self.classes[deepest])

    def heads(self) -> set[str]:
        """Return the names at the top of the configuration."""
        named = {section[0] for section in self.classes} | {name.partition(".")[0] for name in self.missing}
        return named | set(self.tree.children(""))


def read_own_trainer(recipe: Recipe, code: Path, answers: AnswerCache) -> OwnTrainer | ConfigFault:
    """Read a trainer's configuration files, and the classes that the recipe assigns to their sections."""
    try:
        tree = load_configuration(code, config_location(recipe), answers)
    except ConfigFault as fault:
        return fault
    trainer = OwnTrainer(tree, SourceIndex(code))
    for section, dotted in recipe.trainer.sections.items():
        found = read_config_class(trainer.sources, dotted)
        if found is None:
            trainer.missing[section] = dotted
        else:
            trainer.classes[tuple(section.split("."))] = found
    return trainer


def check_own_keys(
    loaded: RecipeWithOrigins, trainer: OwnTrainer | ConfigFault | None, code: Path | None
) -> list[Finding]:
    """Check the keys of a recipe and of the trainer's configuration files.

    Args:
        trainer: The result of `read_own_trainer`; None without a workspace.
        code: The workspace's code folder, if there is one.
    """
    fault = trainer if isinstance(trainer, ConfigFault) else None
    return _OwnKeyChecker(
        loaded, fault, code, trainer if isinstance(trainer, OwnTrainer) else None
    ).findings()


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
        where = loaded.where(*path) if setting or entry is None else entry.where
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


class _OwnKeyChecker(KeyChecker):
    def __init__(
        self,
        loaded: RecipeWithOrigins,
        fault: ConfigFault | None,
        code: Path | None,
        own: OwnTrainer | None,
    ) -> None:
        super().__init__(loaded, fault, code)
        self._own = own

    def findings(self) -> list[Finding]:
        self._check_reserved()
        self._check_set_twice()
        self._check_cluster()
        self._check_adaptations()
        self._check_fault()
        if self._own is not None:
            self._check_classes(self._own)
            self._check_validation(self._own)
            self._check_settings(self._own)
            self._check_files(self._own)
        return self._found

    def _check_cluster(self) -> None:
        """Report an override of a size that differs from the recipe's cluster."""
        by_word = {one.key: one for one in self._settings if one.path[0] == "cluster"}
        for setting in self._settings:
            word = by_word.get(setting.key)
            if setting.from_overrides and word and setting.value != word.value:
                message = f"{setting.key} is {setting.value}, and {word.origin} gives {word.value}"
                fix = f"remove {OVERRIDES}.{setting.key}, or set {word.origin} to fit it"
                self._error(setting.path, setting.key, message, "cluster-size", fix)

    def _check_classes(self, own: OwnTrainer) -> None:
        for section, dotted in own.missing.items():
            message = f"the code has no class {dotted}"
            self._error(("trainer", "sections", section), "", message, "trainer-class")

    def _check_validation(self, own: OwnTrainer) -> None:
        dotted = self._recipe.trainer.validate_
        found = own.sources.find(dotted) if dotted else None
        if dotted and (found is None or not isinstance(found[1], ast.FunctionDef)):
            self._error(("trainer", "validate"), "", f"the code has no function {dotted}", "trainer-class")

    def _check_settings(self, own: OwnTrainer) -> None:
        """Check every key that the recipe sets or names."""
        trainer = self._recipe.trainer
        settings = list(self._settings)
        settings += [Setting(key, value, ("trainer", "resume", key)) for key, value in trainer.resume.items()]
        settings += [
            Setting(key, None, ("trainer", "paths", index)) for index, key in enumerate(trainer.paths)
        ]
        assert trainer.keys is not None
        for name in ("folder", "load"):
            path = ("trainer", "keys", "checkpoint", name)
            settings += [Setting(key, None, path) for key in getattr(trainer.keys.checkpoint, name) or ()]
        for word in type(trainer.layout).model_fields if trainer.layout else ():
            if key := getattr(trainer.layout, word):
                settings.append(Setting(key, None, ("trainer", "layout", word)))
        for setting in settings:
            message, meant = _unknown(own, setting.key)
            if message:
                under = f"{OVERRIDES}." if setting.from_overrides else ""
                fix = f"write {under}{meant[0]} in place of {under}{setting.key}" if meant else ""
                self._error(setting.path, setting.key, message + question(meant[:1]), "unknown-key", fix)

    def _check_files(self, own: OwnTrainer) -> None:
        """Report keys of the trainer's configuration files that have no effect because nothing reads them."""
        for key, entry in own.tree.entries.items():
            message, meant = _unknown(own, key)
            if message:
                self._found.append(_unread(key, entry, message, meant))


def _unread(key: str, entry: ConfigEntry, message: str, meant: list[str]) -> Finding:
    fix = f"correct it by a patch, or overrule it: plan.except.{UNREAD}=REASON"
    if meant:
        fix = f"set {OVERRIDES}.{meant[0]}, and {fix}"
    return Finding(
        UNREAD, Severity.ERROR, (), key, message + question(meant[:1]), fix, entry.where, certain=False
    )


def _unknown(own: OwnTrainer, key: str) -> tuple[str, list[str]]:
    """Return why nothing reads a key, and similar keys; "" if it is read, or if that is unknown."""
    parts = tuple(key.split("."))
    found = own.reader_of(parts)
    if found is not None:
        depth, reader = found
        section, name = ".".join(parts[:depth]), parts[depth]
        if reader.takes(name) or _is_section(own, parts[: depth + 1]):
            return "", []
        meant = [f"{section}.{near}" for near in nearest_names(name, reader.keys, 3, 0.7)]
        return f"unknown key {key!r}: {reader.name} has no {name} ({reader.where})", meant
    head = parts[0]
    if head not in own.heads():
        files = ", ".join(own.tree.files[:1])
        meant = [".".join((near, *parts[1:])) for near in nearest_names(head, own.heads(), 3, 0.7)]
        return f"unknown key {key!r}: neither {files} nor trainer.sections has a section {head}", meant
    if not _is_section(own, parts) and head not in {name.partition(".")[0] for name in own.missing}:
        own.unchecked.setdefault(head, "trainer.sections names no class for it")
    return "", []


def _is_section(own: OwnTrainer, parts: tuple[str, ...]) -> bool:
    """Return whether a class is assigned to this section or to one below it."""
    return any(
        len(section) >= len(parts) and all(a in ("*", b) for a, b in zip(section, parts, strict=False))
        for section in own.classes
    )
