"""A recipe's keys and values against the code it is for: every key has a reader, every value may be one.

Nothing is imported from that code, and nothing of it is run. Sizes are `plan`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from npu_rl.config.finding import Finding, Severity
from npu_rl.config.problems import KeyPath, dotted
from npu_rl.config.suggest import nearest
from npu_rl.recipes.benchmark_only import HINT, spoiled
from npu_rl.recipes.key_map import choices_of, out_of_range, word_for
from npu_rl.recipes.reserved_keys import owned, owned_by
from npu_rl.recipes.schema import Recipe
from npu_rl.recipes.trainer_settings import OVERRIDES, Setting, config_name, flat, merged, settings, unheard
from npu_rl.trainer_code.adaptation_switches import known_switches, switches_in_code
from npu_rl.trainer_code.answer_cache import AnswerCache
from npu_rl.trainer_code.config_tree import ConfigFault, ModuleFault
from npu_rl.trainer_keys.key_resolver import Readers
from npu_rl.trainer_keys.resolution import Verdict


class Said(Protocol):
    """A recipe that was loaded, and who wrote each of its keys."""

    @property
    def recipe(self) -> Recipe: ...

    def where(self, *path: str | int) -> str: ...


def read_trainer(
    recipe: Recipe, code: Path | None, answers: AnswerCache | None = None
) -> Readers | ConfigFault | None:
    """Read the trainer's configuration in a code folder, once; or say why it can't be read. None without a folder."""
    if code is None:
        return None
    given = {setting.key: setting.value for setting in flat(settings(recipe))}
    try:
        off = [slug for slug, on in recipe.adaptations.items() if not on]
        return Readers(code, recipe.trainer.module, config_name(recipe), given, off, answers)
    except ConfigFault as fault:
        return fault


def check_keys(loaded: Said, trainer: Readers | ConfigFault | None, code: Path | None) -> list[Finding]:
    """Find what is wrong with a recipe's keys and values.

    Args:
        loaded: The recipe.
        trainer: What `read_trainer` read; None without a workspace checks less.
        code: The workspace's code folder, if there is one.
    """
    return _Check(loaded, trainer, code).findings()


class _Check:
    def __init__(self, loaded: Said, trainer: Readers | ConfigFault | None, code: Path | None) -> None:
        self._loaded = loaded
        self._recipe = loaded.recipe
        self._trainer = trainer
        self._code = code
        self._found: list[Finding] = []
        self._settings = list(flat(settings(loaded.recipe)))

    def findings(self) -> list[Finding]:
        self._unheard()
        self._owned()
        self._twice()
        self._adaptations()
        self._benchmark()
        if isinstance(self._trainer, ConfigFault):
            fault = self._trainer
            path = ("trainer", "module" if isinstance(fault, ModuleFault) else "config")
            self._error(path, "", f"{fault} ({fault.where})", "trainer-config")
        elif self._trainer is not None:
            self._keys(self._trainer)
        return self._found

    def _keys(self, readers: Readers) -> None:
        for setting in self._settings:
            verdict = readers.look(setting.key)
            if not verdict.known:
                self._unknown(setting, verdict)
                continue
            if verdict.message:
                self._note(setting.path, setting.key, verdict.message, "key-read-elsewhere")
            if verdict.section:
                self._section(setting, readers)
            else:
                self._value(setting, verdict, readers)

    def _unknown(self, setting: Setting, verdict: Verdict) -> None:
        fix = ""
        if verdict.right:
            right = word_for(verdict.right) or f"{OVERRIDES}.{verdict.right}"
            fix = f"write {right} in place of {_typed(setting.path)}"
        self._error(setting.path, setting.key, verdict.message, "unknown-key", fix)

    def _value(self, setting: Setting, verdict: Verdict, readers: Readers) -> None:
        """One fault of a value: its type, its range in a recipe, or what the code that reads it accepts."""
        value, where = setting.value, f" ({verdict.where})" if verdict.where else ""
        if wrong := verdict.kinds.wrong(value):
            fix = self._nearest(setting, value, verdict.kinds.choices)
            self._error(setting.path, setting.key, f"{wrong}{where}", "invalid-value", fix)
        elif setting.raw and (outside := out_of_range(setting.key, value)):
            certain = word_for(setting.key) is not None
            message = f"{outside}, not {value}"
            self._error(setting.path, setting.key, message, "invalid-value", certain=certain)
        elif refused := readers.refused(setting.key, value):
            refused = replace(refused, names=self._words(setting, refused.names))
            fix = self._nearest(setting, refused.value, refused.names)
            message = f"{refused} ({refused.where})"
            self._error(setting.path, setting.key, message, "invalid-value", fix, refused.certain)

    def _words(self, setting: Setting, names: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the accepted names that the recipe's own key takes; all of them under `overrides`."""
        own = () if setting.raw else choices_of(_typed(setting.path))
        return tuple(name for name in names if name in own) or names

    def _nearest(self, setting: Setting, wrong: Any, names: Collection[str]) -> str:
        near = nearest(wrong, names) if isinstance(wrong, str) else None
        if len(names) == 1:
            (near,) = names
        if near is None:
            return ""
        given = setting.value
        right = [near if item == wrong else item for item in given] if isinstance(given, list) else near
        text = f"[{', '.join(map(str, right))}]" if isinstance(right, list) else right
        return f"set {_typed(setting.path)} to {text}"

    def _section(self, setting: Setting, readers: Readers) -> None:
        """A section is set as a whole only by a mapping, or left empty."""
        if setting.value is None or setting.value == {}:
            return
        names = ", ".join(readers.tree.children(setting.key)[:6])
        message = f"{setting.key} is a section, not a value" + (f"; it has {names}, ..." if names else "")
        self._error(setting.path, setting.key, message, "invalid-value")

    def _unheard(self) -> None:
        backend = self._recipe.actor.strategy
        for path in unheard(self._recipe):
            self._error(path, "", f"{dotted(path)} has no effect with {backend}", "key-without-effect")

    def _owned(self) -> None:
        ours = owned(self._recipe)
        for setting in self._settings:
            instead = owned_by(setting.key, ours) if setting.raw else None
            if instead is not None:
                message = f"{setting.key} is npu-rl's to set: {instead}"
                self._error(setting.path, setting.key, message, "reserved-key")

    def _twice(self) -> None:
        """An override of what a section of the recipe says too."""
        said = {setting.key: setting for setting in self._settings if not setting.raw}
        for setting in self._settings:
            first = said.get(setting.key)
            if setting.raw and first and self._written(first.path):
                message = f"{first.said_by} sets this key too ({self._loaded.where(*first.path)}); the override wins"
                self._note(setting.path, setting.key, message, "key-set-twice")

    def _written(self, path: KeyPath) -> bool:
        """Whether a person wrote the key, rather than the schema's default."""
        model: Any = self._recipe
        for name in path:
            if not hasattr(model, "model_fields_set"):
                return True
            if name not in model.model_fields_set:
                return False
            model = getattr(model, str(name))
        return True

    def _adaptations(self) -> None:
        wanted = self._recipe.adaptations
        if not wanted:
            return
        known: Mapping[str, str] = known_switches(self._code)
        if self._code is not None and not wanted.keys() <= known.keys():
            known = {**known, **switches_in_code(self._code)}
        for slug in wanted:
            if slug not in known:
                names = ", ".join(sorted(known)) or "none"
                near = nearest(slug, known)
                fix = f"write adaptations.{near} in place of adaptations.{slug}" if near else ""
                message = f"there is no adaptation {slug!r} (known: {names})"
                self._error(("adaptations", slug), "", message, "unknown-adaptation", fix)

    def _benchmark(self) -> None:
        """What must not be in a training is only let through where the recipe says that it is none."""
        if self._recipe.benchmark:
            return
        for fault in spoiled(self._recipe, merged(self._settings)):
            self._error(fault.path, fault.key, fault.message, "benchmark-only", HINT)

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
    """A key as a person types it, on a command line too."""
    return ".".join(map(str, path))
