"""Resolution of a trainer's key to the code that reads it.

That can be its configuration files, their dataclasses, the libraries' classes, or a line of its code. Everything is
read as text; nothing is imported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_rl.common.yaml_documents.suggest import nearest
from npu_rl.recipes.trainer_code.answer_cache import AnswerCache
from npu_rl.recipes.trainer_code.config_location import ConfigLocation
from npu_rl.recipes.trainer_code.config_tree import ConfigTree
from npu_rl.recipes.trainer_code.load_configuration import load_configuration
from npu_rl.recipes.trainer_code.source_index import Class, SourceField, SourceIndex
from npu_rl.recipes.trainer_code.value_types import (
    ANY,
    ExpectedType,
    default_type,
    field_dataclass,
    field_type,
)
from npu_rl.recipes.trainer_keys.resolution import KeyResolution, RefusedValue, unknown
from npu_rl.recipes.trainer_keys.resolution_cache import ResolutionCache

if TYPE_CHECKING:
    from npu_rl.recipes.trainer_keys.accepted_values import AcceptedValues
    from npu_rl.recipes.trainer_keys.code_usages import CodeUsages
    from npu_rl.recipes.trainer_keys.engine_arguments import EngineArguments
    from npu_rl.recipes.trainer_keys.transformer_keys import TransformerKeys

_DDP = "megatron.core.distributed.distributed_data_parallel_config.DistributedDataParallelConfig"
_OPTIMIZER = "megatron.core.optimizer.optimizer_config.OptimizerConfig"
_CLASSES = {"override_ddp_config": _DDP, "override_optimizer_config": _OPTIMIZER}
_TRANSFORMER = "override_transformer_config"
_ENGINE = "engine_kwargs.vllm"
_MODEL = "model.override_config"
_ROLLOUT = "actor_rollout_ref.rollout"
# The module of a user's reward function may register a manager (verl/trainer/ppo/reward.py:127@v0.6.1).
_MANAGERS = ("reward_model.reward_manager", "reward.reward_manager.name")
_OWN_MODULES = (
    "custom_reward_function.path",
    "reward.custom_reward_function.path",
    "reward.reward_manager.module.path",
)


@dataclass(frozen=True)
class _SplitKey:
    """An unknown key, split where the configuration files end.

    Attributes:
        section: The deepest section that the files have.
        rest: The names below it.
    """

    section: str
    rest: tuple[str, ...]


class KeyResolver:
    """Resolver of the keys of one configuration in a code folder.

    Attributes:
        code: The code folder.
        tree: The composed configuration.
        sources: The parsed files of the folder.
        unchecked: Sections whose keys can't be checked here, with the name of what reads them.
    """

    def __init__(
        self,
        code: Path,
        location: ConfigLocation,
        given: Mapping[str, Any] | None = None,
        switched_off: Collection[str] = (),
        answers: AnswerCache | None = None,
    ) -> None:
        """Compose the configuration. Raises ConfigFault if its files can't be read.

        Args:
            code: The code folder.
            location: The trainer's entry point and its Hydra configuration.
            given: All keys that are set, with their values: some are only valid together with others.
            switched_off: The adaptations that are off.
            answers: The cache of answers on the code folder.
        """
        self.code = code
        answers = answers or AnswerCache(code)
        self.tree: ConfigTree = load_configuration(code, location, answers)
        self.sources = SourceIndex(code)
        self._module = location.module
        self._given = given or {}
        self._switched_off = switched_off
        self.unchecked: dict[str, str] = {}
        rollout = [self._value(f"{_ROLLOUT}.{name}") for name in ("name", "mode")]
        configuration = [location.identity, self._backends, self._rollout_engine]
        others = [sorted(switched_off), sorted(self._given), rollout]
        self._cache = ResolutionCache(answers, configuration, others)

    # Modules that follow a key through the code are imported for the first key that is not cached.

    @cached_property
    def _usages(self) -> CodeUsages:
        from npu_rl.recipes.trainer_keys.code_usages import CodeUsages

        return CodeUsages(self.sources, self._module)

    @cached_property
    def _transformer(self) -> TransformerKeys:
        from npu_rl.recipes.trainer_keys.transformer_keys import TransformerKeys

        return TransformerKeys(self.code, self.sources)

    @cached_property
    def _accepted_values(self) -> AcceptedValues:
        from npu_rl.recipes.trainer_keys.accepted_values import AcceptedValues

        program = f"{self._module.replace('.', '/')}.py"
        return AcceptedValues(self.sources, program, self.tree, self._backends, self._rollout_engine)

    @cached_property
    def _engine(self) -> EngineArguments:
        from npu_rl.recipes.trainer_keys.engine_arguments import EngineArguments

        return EngineArguments(self.code, self.sources, self._switched_off)

    def resolve(self, key: str) -> KeyResolution:
        """Resolve a key. Keys within mappings are dotted keys.

        A section whose keys can't be checked is added to `unchecked`.
        """
        find = partial(self._resolve_with_suggestion, key)
        resolution = self._cache.resolution(key, self._given.get(key), find)
        if resolution.unchecked:
            self.unchecked.setdefault(key.rpartition(".")[0], resolution.unchecked)
        return resolution

    def _resolve_with_suggestion(self, key: str) -> KeyResolution:
        resolution = self._resolve(key)
        if resolution.right and not self._resolve(resolution.right).known:
            resolution = replace(resolution, right="")
        return resolution

    def _resolve(self, key: str) -> KeyResolution:
        if key.startswith("hydra."):
            return KeyResolution(True)
        entry = self.tree.entries.get(key)
        split = self._split(key)
        if entry is not None:
            from_library = None if entry.section else self._resolve_in_library(split)
            if from_library and from_library.known and not from_library.unchecked:
                return from_library
            if from_engine := self._resolve_in_engine(key):
                return from_engine
            expected = self._expected_type(key)
            return KeyResolution(True, section=entry.section, expected=expected, where=entry.where)
        if "/" in key or "@" in key:
            why = "a configuration group is chosen by `trainer: {config: NAME}`"
            return unknown(f"unknown key {key}: {why}")
        found = self._resolve_in_library(split) or self._resolve_in_dataclass(split)
        return found or self._resolve_in_code(split)

    def _resolve_in_engine(self, key: str) -> KeyResolution | None:
        """Resolve a key of the rollout that is passed unchanged to vLLM, if vLLM generates."""
        section, _, name = key.rpartition(".")
        value = self._given.get(key)
        if section != _ROLLOUT or not isinstance(value, str) or self._rollout_engine != "vllm":
            return None
        if self._given.get(f"{_ROLLOUT}.{_ENGINE}.{name}") is not None:
            return None  # which the server passes in its place
        resolution = self._engine.resolve_rollout_key(name, self._value(f"{_ROLLOUT}.mode"), value)
        return resolution if resolution and resolution.expected.choices else None

    @property
    def _backends(self) -> tuple[str, str]:
        """The training backend in use and the other one, as named in file paths."""
        megatron = self._value("actor_rollout_ref.actor.strategy") == "megatron"
        return ("megatron", "fsdp") if megatron else ("fsdp", "megatron")

    @property
    def _rollout_engine(self) -> str:
        """The engine that generates."""
        name = self._value(f"{_ROLLOUT}.name")
        return name if isinstance(name, str) else ""

    def _value(self, key: str) -> Any:
        entry = self.tree.entries.get(key)
        return self._given.get(key, entry.value if entry else None)

    def find_refused(self, key: str, value: object) -> RefusedValue | None:
        """Return why the code that reads a known key raises on a value; None if it doesn't, or if that is unclear."""
        if key in _MANAGERS and any(map(self._given.get, _OWN_MODULES)):
            return None
        return self._cache.refusal(key, value, lambda: self._find_refused(key, value))

    def _find_refused(self, key: str, value: object) -> RefusedValue | None:
        for mapping in (_TRANSFORMER, *_CLASSES):
            _, found, name = key.partition(f".{mapping}.")
            if found:
                named = self._transformer.classes if mapping == _TRANSFORMER else (_CLASSES[mapping],)
                classes = [c for c in map(self.sources.find_class, named) if c]
                return self._accepted_values.check_library_key(name, value, classes)
        _, found, name = key.partition(f".{_ENGINE}.")
        if found:
            return self._engine.find_refused(tuple(name.split(".")), value)
        if key.startswith("hydra.") or f".{_MODEL}." in key:
            return None
        target = self._target_class(key.rpartition(".")[0])
        return self._accepted_values.check_key(key, value, [target] if target else [])

    def _expected_type(self, key: str) -> ExpectedType:
        """Return the type of a key from its section's dataclass, or else from its default in the file."""
        by_default = default_type(self.tree.entries[key].value)
        section, _, name = key.rpartition(".")
        fields = self._fields(section)
        by_class = field_type(fields[name], self.sources) if fields and name in fields else ANY
        return by_class if by_class.types else by_default

    def _split(self, key: str) -> _SplitKey:
        parts = key.split(".")
        for length in range(len(parts) - 1, -1, -1):
            section = ".".join(parts[:length])
            if not section or section in self.tree.entries:
                return _SplitKey(section, tuple(parts[length:]))
        raise AssertionError  # length 0 always is the top

    def _resolve_in_library(self, split: _SplitKey) -> KeyResolution | None:
        """Resolve a key that is passed on to Megatron-core, MindSpeed, vLLM, vllm-ascend or transformers."""
        full = f"{split.section}." + ".".join(split.rest)
        for mapping in (_TRANSFORMER, *_CLASSES, _ENGINE, _MODEL):
            before, found, inside = f".{full}".partition(f".{mapping}.")
            if not found:
                continue
            name = inside.split(".")
            section = f"{before}.{mapping}".lstrip(".")
            if mapping == _TRANSFORMER:
                return self._transformer.resolve(section, inside, self._given)
            if mapping == _ENGINE:
                return self._engine.resolve(section, tuple(name), self._value(f"{_ROLLOUT}.mode"))
            if mapping == _MODEL:
                return self._resolve_in_model_config(section, name)
            return self._resolve_in_class(section, _CLASSES[mapping], inside)
        return None

    def _resolve_in_model_config(self, section: str, names: list[str]) -> KeyResolution:
        """Resolve a key of config.json; Megatron's workers read only those below `model_config`."""
        below = self.tree.children(section)
        if not below or names[0] in below:
            return KeyResolution(True, unchecked="transformers")
        inner, name = "model_config" if "model_config" in below else below[0], ".".join(names)
        return unknown(f"unknown key {section}.{name}", f"{section}.{inner}.{name}")

    def _resolve_in_class(self, section: str, dotted: str, name: str) -> KeyResolution:
        fields = self.sources.fields(dotted)
        module, _, short = dotted.rpartition(".")
        if fields is None:
            return KeyResolution(True, unchecked=f"{short} (there is no {module} in the code)")
        if name in fields:
            expected = field_type(fields[name], self.sources)
            return KeyResolution(True, expected=expected, where=fields[name].where)
        near = nearest(name, fields)
        return unknown(f"{short} has no field {name}", near and f"{section}.{near}")

    def _resolve_in_dataclass(self, split: _SplitKey) -> KeyResolution | None:
        """Resolve a field of a section's `_target_` class, or of its fields' classes.

        A field that is a mapping accepts any key.
        """
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
                return KeyResolution(True, expected=field_type(field, self.sources), where=field.where)
            if field_type(field, self.sources).types - {"none"} == frozenset({"mapping"}):
                return KeyResolution(True, where=field.where)
            inner = field_dataclass(field, self.sources)
            fields = self.sources.fields_of_class(*inner) if inner else None
        return None

    def _fields(self, section: str) -> Mapping[str, SourceField] | None:
        found = self._target_class(section)
        return self.sources.fields_of_class(*found) if found else None

    def _target_class(self, section: str) -> Class | None:
        target = self.tree.entries.get(f"{section}._target_")
        return self.sources.find_class(target.value) if target and isinstance(target.value, str) else None

    def _resolve_in_code(self, split: _SplitKey) -> KeyResolution:
        """Resolve a key by its usages in the trainer's code."""
        name = split.rest[0]
        entry = self.tree.entries.get(split.section)
        full = ".".join([split.section, *split.rest]).lstrip(".")
        if entry is not None and not entry.section and entry.value is not None and not entry.interpolation:
            return unknown(f"unknown key {full}: {split.section} is a value, not a section ({entry.where})")
        if entry is not None and entry.section and not self.tree.children(split.section):
            return KeyResolution(True, unchecked=f"whatever reads {split.section} ({entry.where})")
        sections = [key for key, value in self.tree.entries.items() if value.section]
        holders = sorted(self.tree.holders(name))
        asked = (split.section, name, sections, holders)
        read = self._cache.usage([self._module, *asked], lambda: self._usages.find(*asked))
        if read is None:
            return self._unread_key(split, full)
        whole = f", which reads {name} as a whole" if len(split.rest) > 1 else ""
        message = f"known only to {read.where}{whole}"
        if self._fields(split.section):
            target = self.tree.entries[f"{split.section}._target_"].value
            message += f", but {target} has no such field"
            if built_at := self._usages.builder_of(split.section):
                return unknown(f"{full} is {message} and is built from it at {built_at}")
            return KeyResolution(True, message, where=read.where)
        return KeyResolution(True, "" if read.certain else message, where=read.where)

    def _unread_key(self, split: _SplitKey, full: str) -> KeyResolution:
        """Return the error for a key that nothing reads, with the nearest known key."""
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
