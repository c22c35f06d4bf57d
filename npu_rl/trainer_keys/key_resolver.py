"""Who reads a key of the trainer: its configuration files, their dataclasses, the libraries' own classes, or
some line of its code. Everything is read from the text of a code folder; nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_rl.config.suggest import nearest
from npu_rl.trainer_code.answer_cache import AnswerCache
from npu_rl.trainer_code.config_tree import ConfigTree, configuration
from npu_rl.trainer_code.source_index import Field, Module, Sources
from npu_rl.trainer_keys.resolution import Refused, Verdict, unknown
from npu_rl.trainer_keys.resolution_cache import Remembered
from npu_rl.trainer_keys.value_types import ANY, Kinds, dataclass_of, of_default, of_field

if TYPE_CHECKING:
    from npu_rl.trainer_keys.accepted_values import Choices
    from npu_rl.trainer_keys.code_usages import CodeReads
    from npu_rl.trainer_keys.engine_arguments import EngineArguments
    from npu_rl.trainer_keys.transformer_keys import TransformerKeys

_DDP = "megatron.core.distributed.distributed_data_parallel_config.DistributedDataParallelConfig"
_OPTIMIZER = "megatron.core.optimizer.optimizer_config.OptimizerConfig"
_CLASSES = {"override_ddp_config": _DDP, "override_optimizer_config": _OPTIMIZER}
_TRANSFORMER = "override_transformer_config"
_ENGINE = "engine_kwargs.vllm"
_MODEL = "model.override_config"
_ROLLOUT = "actor_rollout_ref.rollout"


@dataclass(frozen=True)
class _Split:
    """An unknown key as the deepest section the files have, and the names below it."""

    section: str
    rest: tuple[str, ...]


class Readers:
    """The readers of one configuration of a code folder. Raises ConfigFault if its files can't be read.

    given: all keys that are set, with their values; a reader may want another one beside the one that is asked for.
    switched_off: the adaptations that are off. unchecked: section -> whose keys nothing here can judge, as looked at.
    """

    def __init__(
        self,
        code: Path,
        module: str,
        config: str,
        given: Mapping[str, Any] | None = None,
        switched_off: Collection[str] = (),
        answers: AnswerCache | None = None,
    ) -> None:
        self.code = code
        self._answers = answers or AnswerCache(code)
        self.tree: ConfigTree = configuration(code, module, config, self._answers)
        self.sources = Sources(code)
        self._module = module
        self._given = given or {}
        self._switched_off = switched_off
        self.unchecked: dict[str, str] = {}
        rollout = [self._value(f"{_ROLLOUT}.{name}") for name in ("name", "mode")]
        depends_on = [module, config, sorted(switched_off), sorted(self._given), self._backends, rollout]
        self._remembered = Remembered(self._answers, depends_on)

    # What follows a key through the code is imported for the first key that is not remembered.

    @cached_property
    def _reads(self) -> CodeReads:
        from npu_rl.trainer_keys.code_usages import CodeReads

        return CodeReads(self.sources, self._module)

    @cached_property
    def _transformer(self) -> TransformerKeys:
        from npu_rl.trainer_keys.transformer_keys import TransformerKeys

        return TransformerKeys(self.code, self.sources)

    @cached_property
    def _choices(self) -> Choices:
        from npu_rl.trainer_keys.accepted_values import Choices

        program = f"{self._module.replace('.', '/')}.py"
        return Choices(self.sources, program, self.tree, self._backends)

    @cached_property
    def _engine(self) -> EngineArguments:
        from npu_rl.trainer_keys.engine_arguments import EngineArguments

        return EngineArguments(self.code, self.sources, self._switched_off)

    def look(self, key: str) -> Verdict:
        """Who knows a key (with every mapping's keys as keys of their own). Sections it can't judge: `unchecked`."""
        verdict = self._remembered.verdict(key, self._given.get(key), lambda: self._verdict(key))
        if verdict.unchecked:
            self.unchecked.setdefault(key.rpartition(".")[0], verdict.unchecked)
        return verdict

    def _verdict(self, key: str) -> Verdict:
        verdict = self._look(key)
        if verdict.right and not self._look(verdict.right).known:
            verdict = replace(verdict, right="")
        return verdict

    def _look(self, key: str) -> Verdict:
        if key.startswith("hydra."):
            return Verdict(True)
        entry = self.tree.entries.get(key)
        split = self._split(key)
        if entry is not None:
            handed_on = None if entry.section else self._of_a_library(split)
            if handed_on and handed_on.known and not handed_on.unchecked:
                return handed_on
            passed_on = self._of_the_engine(key)
            if passed_on is not None:
                return passed_on
            return Verdict(True, section=entry.section, kinds=self._kinds_of(key), where=entry.where)
        if "/" in key or "@" in key:
            return unknown(
                f"unknown key {key}: a configuration group is chosen by `trainer: {{config: NAME}}`"
            )
        return self._of_a_library(split) or self._of_a_dataclass(split) or self._of_the_code(split)

    def _of_the_engine(self, key: str) -> Verdict | None:
        """A key of the rollout that vLLM gets as it is, if it is vLLM that generates."""
        section, _, name = key.rpartition(".")
        text = isinstance(self._given.get(key), str)
        if section != _ROLLOUT or not text or self._value(f"{_ROLLOUT}.name") != "vllm":
            return None
        if name == "load_format" and (self._given[key].startswith("dummy") or not self._given[key].islower()):
            return None  # verl passes all of the first as dummy, vLLM lowers letters (vllm/config.py:1720@v0.9.1)
        verdict = self._engine.of_rollout(name, self._value(f"{_ROLLOUT}.mode"))
        return verdict if verdict and verdict.kinds.choices else None

    @property
    def _backends(self) -> tuple[str, str]:
        """The training backend that runs and the one that doesn't, as the paths of their files name them."""
        megatron = self._value("actor_rollout_ref.actor.strategy") == "megatron"
        return ("megatron", "fsdp") if megatron else ("fsdp", "megatron")

    def _value(self, key: str) -> Any:
        entry = self.tree.entries.get(key)
        return self._given.get(key, entry.value if entry else None)

    def refused(self, key: str, value: object) -> Refused | None:
        """Why the code that reads a known key raises on a value; None if it accepts it, or doesn't show."""
        return self._remembered.refusal(key, value, lambda: self._refused(key, value))

    def remember(self) -> None:
        """Keep the answers for the next command."""
        self._answers.save()

    def _refused(self, key: str, value: object) -> Refused | None:
        for place in (_TRANSFORMER, *_CLASSES):
            _, found, name = key.partition(f".{place}.")
            if found:
                named = self._transformer.classes if place == _TRANSFORMER else (_CLASSES[place],)
                classes = [c for c in map(self._class, named) if c]
                return self._choices.of_library(name, value, classes)
        if key.startswith("hydra.") or f".{_ENGINE}." in key or f".{_MODEL}." in key:
            return None
        target = self._target(key.rpartition(".")[0])
        return self._choices.of_key(key, value, [target] if target else [])

    def _class(self, dotted: str) -> tuple[Module, ast.ClassDef] | None:
        found = self.sources.find(dotted)
        return (found[0], found[1]) if found and isinstance(found[1], ast.ClassDef) else None

    def _kinds_of(self, key: str) -> Kinds:
        """What the file's own value and the section's dataclass say a key takes."""
        by_default = of_default(self.tree.entries[key].value)
        section, _, name = key.rpartition(".")
        fields = self._fields(section)
        by_class = of_field(fields[name], self.sources) if fields and name in fields else ANY
        return by_class if by_class.kinds else by_default

    def _split(self, key: str) -> _Split:
        parts = key.split(".")
        for length in range(len(parts) - 1, -1, -1):
            section = ".".join(parts[:length])
            if not section or section in self.tree.entries:
                return _Split(section, tuple(parts[length:]))
        raise AssertionError  # length 0 always is the top

    def _of_a_library(self, split: _Split) -> Verdict | None:
        """The keys a section hands on to Megatron-core, MindSpeed, vLLM, vllm-ascend or transformers."""
        full = f"{split.section}." + ".".join(split.rest)
        for place in (_TRANSFORMER, *_CLASSES, _ENGINE, _MODEL):
            before, found, inside = f".{full}".partition(f".{place}.")
            if not found:
                continue
            name = inside.split(".")
            section = f"{before}.{place}".lstrip(".")
            if place == _TRANSFORMER:
                return self._transformer.look(section, inside, self._given)
            if place == _ENGINE:
                return self._engine.look(section, tuple(name), self._value(f"{_ROLLOUT}.mode"))
            if place == _MODEL:
                return self._of_the_model(section, name)
            return self._of_a_class(section, _CLASSES[place], inside)
        return None

    def _of_the_model(self, section: str, names: list[str]) -> Verdict:
        """A key of config.json; Megatron's workers only read those below `model_config`."""
        below = self.tree.children(section)
        if not below or names[0] in below:
            return Verdict(True, unchecked="transformers")
        inner = "model_config" if "model_config" in below else below[0]
        full = f"{section}.{'.'.join(names)}"
        return unknown(f"unknown key {full}", f"{section}.{inner}.{'.'.join(names)}")

    def _of_a_class(self, section: str, dotted: str, name: str) -> Verdict:
        fields = self.sources.fields(dotted)
        short = dotted.rpartition(".")[2]
        if fields is None:
            return Verdict(True, unchecked=f"{short} (there is no {dotted.rpartition('.')[0]} in the code)")
        if name in fields:
            return Verdict(True, kinds=of_field(fields[name], self.sources), where=fields[name].where)
        near = nearest(name, fields)
        return unknown(f"{short} has no field {name}", near and f"{section}.{near}")

    def _of_a_dataclass(self, split: _Split) -> Verdict | None:
        """A field of the class a section names as its `_target_`, of one of its fields' classes, or a section
        that is a mapping of anything there."""
        fields = self._fields(split.section)
        for index, name in enumerate(split.rest):
            field = fields.get(name) if fields else None
            if field is None:
                if not fields or not index:
                    return None
                above = ".".join([split.section, *split.rest[:index]])
                right = nearest(name, fields)
                return unknown(f"unknown key {above}.{name}", right and f"{above}.{right}")
            if index == len(split.rest) - 1:
                return Verdict(True, kinds=of_field(field, self.sources), where=field.where)
            if of_field(field, self.sources).kinds - {"none"} == frozenset({"mapping"}):
                return Verdict(True, where=field.where)
            inner = dataclass_of(field, self.sources)
            fields = self.sources.fields_of(*inner) if inner else None
        return None

    def _fields(self, section: str) -> Mapping[str, Field] | None:
        found = self._target(section)
        return self.sources.fields_of(*found) if found else None

    def _target(self, section: str) -> tuple[Module, ast.ClassDef] | None:
        target = self.tree.entries.get(f"{section}._target_")
        return self._class(target.value) if target and isinstance(target.value, str) else None

    def _of_the_code(self, split: _Split) -> Verdict:
        """A read in the trainer's code, or an error with the nearest right name."""
        name = split.rest[0]
        entry = self.tree.entries.get(split.section)
        full = ".".join([split.section, *split.rest]).lstrip(".")
        if entry is not None and not entry.section and entry.value is not None and not entry.interpolation:
            return unknown(f"unknown key {full}: {split.section} is a value, not a section ({entry.where})")
        if entry is not None and entry.section and not self.tree.children(split.section):
            return Verdict(True, unchecked=f"whatever reads {split.section} ({entry.where})")
        sections = [key for key, value in self.tree.entries.items() if value.section]
        read = self._reads.find(split.section, name, sections, self.tree.holders(name))
        if read is None:
            return self._nobody(split, full)
        whole = f", which reads {name} as a whole" if len(split.rest) > 1 else ""
        message = f"known only to {read.where}{whole}"
        if self._fields(split.section):
            target = self.tree.entries[f"{split.section}._target_"].value
            message += f", but {target} has no such field"
            if built := self._reads.built_at(split.section):
                return unknown(f"{full} is {message} and is built from it at {built}")
            return Verdict(True, message, where=read.where)
        return Verdict(True, "" if read.certain else message, where=read.where)

    def _nobody(self, split: _Split, full: str) -> Verdict:
        name = split.rest[0]
        inside = f"unknown key {full}"
        siblings = {*self.tree.children(split.section), *(self._fields(split.section) or {})} - {"_target_"}
        deeper = [child for child in siblings if f"{split.section}.{child}.{name}" in self.tree.entries]
        moved = (".".join([holder, *split.rest]).lstrip(".") for holder in self.tree.holders(name))
        elsewhere = [key for key in moved if key in self.tree.entries]
        if near := nearest(name, siblings):
            right = ".".join([split.section, near, *split.rest[1:]]).lstrip(".")
        elif deeper:
            right = ".".join([split.section, deeper[0], *split.rest])
        elif elsewhere:
            right = min(elsewhere, key=lambda key: (key.split(".")[0] != full.split(".")[0], key))
        else:
            return unknown(f"{inside}: neither the configuration files nor the code read it")
        return unknown(inside, right)
