"""A recipe against the code it is for: every key has a reader, every value may be one, every size divides.

Nothing is imported from that code, and nothing of it is run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from npu_rl.errors import RecipeError
from npu_rl.manifest.problems import KeyPath, closest, dotted
from npu_rl.recipes.batch_rules import Values, broken_rules
from npu_rl.recipes.benchmark import HINT, spoiled
from npu_rl.recipes.choices import choices_of
from npu_rl.recipes.hydra_entry import entry_point
from npu_rl.recipes.hydra_files import ConfigFault, compose_files
from npu_rl.recipes.hydra_yaml import ModuleFault
from npu_rl.recipes.known_switches import known_switches, switches_in_code
from npu_rl.recipes.owned import OWNED, owned, owned_by
from npu_rl.recipes.readers import Readers
from npu_rl.recipes.schema import Recipe
from npu_rl.recipes.settings import Setting, merged, settings, unheard

__all__ = ["OWNED", "Finding", "Findings", "check_recipe", "config_name", "flat", "known_keys"]


class Said(Protocol):
    """A recipe that was loaded, and who wrote each of its keys."""

    @property
    def recipe(self) -> Recipe: ...

    def where(self, *path: str | int) -> str: ...


@dataclass(frozen=True)
class Finding:
    """What is to be told about one key. path: the recipe's key; key: the trainer's, "" if there is none.

    where: "file:line" or the command line's argument. kind: unknown, value, owned, unheard, size, adaptation,
    benchmark, config, reader, twice, unchecked or plan (what only `plan` knows).
    """

    path: KeyPath
    key: str
    message: str
    where: str
    kind: str

    def __str__(self) -> str:
        name = dotted(self.path) if self.path else self.key
        return f"{self.where}: {name + ': ' if name else ''}{self.message}"


@dataclass
class Findings:
    """errors: the run would fail, or not do what the recipe says. notes: what a person should know."""

    errors: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)


def check_recipe(loaded: Said, code: Path | None) -> Findings:
    """Everything that can be told before a run. code: the workspace's code folder; None checks less."""
    return _Check(loaded, code).findings()


def config_name(recipe: Recipe) -> str:
    """The Hydra configuration the run starts from."""
    return recipe.trainer.config or ("ppo_megatron_trainer" if recipe.megatron else "ppo_trainer")


def known_keys(code: Path, config: str, module: str = "verl.trainer.main_ppo") -> set[str]:
    """The keys and sections of the configuration files: these are set by `key=`, others by `+key=`.

    Raises RecipeError if the code has no such configuration.
    """
    try:
        return set(compose_files(entry_point(code, module).folder, config, code).entries)
    except ConfigFault as fault:
        raise RecipeError(
            f"The trainer's configuration {config} can't be read", where=fault.where, why=str(fault)
        ) from None


class _Check:
    def __init__(self, loaded: Said, code: Path | None) -> None:
        self._loaded = loaded
        self._recipe = loaded.recipe
        self._code = code
        self._found = Findings()
        self._settings = list(flat(settings(loaded.recipe)))

    def findings(self) -> Findings:
        self._unheard()
        self._owned()
        self._twice()
        self._adaptations()
        self._benchmark()
        readers = self._readers()
        if readers is not None and self._code is not None:
            self._keys(readers, self._code)
        self._sizes(readers)
        return self._found

    def _readers(self) -> Readers | None:
        if self._code is None:
            message = "there is no workspace yet, so the trainer's keys were not checked"
            self._note((), "", message, "unchecked")
            return None
        recipe = self._recipe
        try:
            given = {setting.key for setting in self._settings}
            return Readers(self._code, recipe.trainer.module, config_name(recipe), given)
        except ConfigFault as fault:
            path = ("trainer", "module" if isinstance(fault, ModuleFault) else "config")
            self._error(path, "", f"{fault} ({fault.where})", "config")
            return None

    def _keys(self, readers: Readers, code: Path) -> None:
        unchecked: set[str] = set()
        for setting in self._settings:
            verdict = readers.look(setting.key)
            if not verdict.known:
                self._error(setting.path, setting.key, verdict.message, "unknown")
                continue
            if verdict.message:
                self._note(setting.path, setting.key, verdict.message, "reader")
            if verdict.unchecked and verdict.unchecked not in unchecked:
                unchecked.add(verdict.unchecked)
                section = setting.key.rpartition(".")[0]
                self._note(
                    setting.path, setting.key, f"{section} is not checked: {verdict.unchecked}", "unchecked"
                )
            if verdict.section:
                self._section(setting, readers)
                continue
            choices = choices_of(setting.key, code, readers.sources)
            wrong = (choices if choices.kinds else verdict.kinds).wrong(setting.value)
            if wrong:
                reader = f" ({verdict.where})" if verdict.where else ""
                self._error(setting.path, setting.key, f"{setting.key} {wrong}{reader}", "value")

    def _section(self, setting: Setting, readers: Readers) -> None:
        """A section is set as a whole only by a mapping, or left empty."""
        if setting.value is None or setting.value == {}:
            return
        names = ", ".join(readers.tree.children(setting.key)[:6])
        message = f"{setting.key} is a section, not a value" + (f"; it has {names}, ..." if names else "")
        self._error(setting.path, setting.key, message, "value")

    def _unheard(self) -> None:
        backend = self._recipe.actor.strategy
        for path in unheard(self._recipe):
            self._error(path, "", f"{dotted(path)} says nothing to {backend}", "unheard")

    def _owned(self) -> None:
        ours = owned(self._recipe)
        for setting in self._settings:
            instead = owned_by(setting.key, ours) if setting.raw else None
            if instead is not None:
                message = f"{setting.key} is npu-rl's to set: {instead}"
                self._error(setting.path, setting.key, message, "owned")

    def _twice(self) -> None:
        """An override of what a section of the recipe says too."""
        said = {setting.key: setting for setting in self._settings if not setting.raw}
        for setting in self._settings:
            first = said.get(setting.key)
            if setting.raw and first and self._written(first.path):
                message = f"{first.said_by} says this key too ({self._loaded.where(*first.path)}); the override wins"
                self._note(setting.path, setting.key, message, "twice")

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
                message = f"there is no adaptation {slug!r}{closest(slug, sorted(known))} (known: {names})"
                self._error(("adaptations", slug), "", message, "adaptation")

    def _benchmark(self) -> None:
        """What must not be in a training is only let through where the recipe says that it is none."""
        if self._recipe.benchmark:
            return
        for fault in spoiled(self._recipe, merged(self._settings)):
            self._error(fault.path, fault.key, f"{fault.message}; {HINT}", "benchmark")

    def _sizes(self, readers: Readers | None) -> None:
        given = merged(self._settings)
        values = Values(
            {key: setting.value for key, setting in given.items()}, readers.tree if readers else None
        )
        for broken in broken_rules(values, self._recipe.megatron, self._code):
            setting = next((given[key] for key in broken.keys if key in given), None)
            self._error(setting.path if setting else (), broken.keys[0], broken.message, "size")

    def _error(self, path: KeyPath, key: str, message: str, kind: str) -> None:
        # the actor's and the reference's keys often come from one line of the recipe: say it once
        if not any(error.path == path and error.message == message for error in self._found.errors):
            self._found.errors.append(Finding(path, key, message, self._loaded.where(*path), kind))

    def _note(self, path: KeyPath, key: str, message: str, kind: str) -> None:
        self._found.notes.append(Finding(path, key, message, self._loaded.where(*path), kind))


def flat(given: Collection[Setting]) -> Iterator[Setting]:
    """Each key of a mapping as a setting of its own.

    Hydra takes `+section.key=value`, but not `section={key: value}` where the section has no such key.
    """
    for setting in given:
        if isinstance(setting.value, Mapping) and setting.value:
            inner = [
                replace(setting, key=f"{setting.key}.{name}", value=value, path=(*setting.path, str(name)))
                for name, value in setting.value.items()
            ]
            yield from flat(inner)
        else:
            yield setting
