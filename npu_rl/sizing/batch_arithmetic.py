"""Sizes that are certain to fail in verl: the arithmetic its trainer and workers assert at the start.

Each rule is looked up in the tree that is set up; one that isn't there (another version, or patched out) is not
applied. Sources: verl@v0.5.0 and @54c9b73, verl/trainer/ppo/ray_trainer.py (_validate_config) and
verl/workers/fsdp_workers.py; Megatron-core 0.12.1, megatron/core/parallel_state.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from npu_rl.trainer_code.citations import CitedCode, Place
from npu_rl.trainer_code.config_tree import ConfigTree

_A, _R, _F = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
_TRAINER = "verl/trainer/ppo/ray_trainer.py"
_ACTOR = "verl/workers/config/actor.py"
_FSDP, _MEGATRON = "verl/workers/fsdp_workers.py", "verl/workers/megatron_workers.py"
_STATE = "megatron/core/parallel_state.py"
# Older ones divide the batch by all dies (verl/trainer/ppo/ray_trainer.py:348@54c9b73).
_OVER_COPIES = Place(_TRAINER, "minimal_bsz = megatron_dp", ("55e3c5b", "verl==0.5.0"))
_WORDS = {_A: "actor.micro_batch", _R: "rollout.log_prob_micro_batch", _F: "reference.micro_batch"}
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?\s*(\.*)([\w.]+)\s*(?:,[^{}]*)?\}")


@dataclass(frozen=True)
class Broken:
    """A rule that doesn't hold.

    Attributes:
        rule: Its stable id.
        keys: The trainer's keys it is about, the likeliest to be changed first.
        message: The figures, with the code that asks for them.
        fix: What to write, in the recipe's words.
    """

    rule: str
    keys: tuple[str, ...]
    message: str
    fix: str


class Values:
    """The value each key will have: what is set, else what the configuration files say."""

    def __init__(self, given: Mapping[str, Any], tree: ConfigTree | None) -> None:
        self._given = given
        self._tree = tree

    def whole(self, key: str, otherwise: int | None = None) -> int | None:
        """A whole number; `otherwise` if it is null, absent or only known at run time."""
        value = self.value(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else otherwise

    def value(self, key: str, depth: int = 0) -> Any:
        """What is set, or the files' value with references to other keys followed. None if unknown."""
        if key in self._given:
            return self._given[key]
        entry = self._tree.entries.get(key) if self._tree else None
        if entry is None or not entry.interpolation:
            return entry.value if entry else None
        match = _REFERENCE.fullmatch(entry.value)
        if match is None or depth > 8:
            return None
        parts = key.split(".")
        above = parts[: len(parts) - len(match[1])] if match[1] else []
        return self.value(".".join([*above, match[2]]), depth + 1)

    def known(self, key: str) -> bool:
        """Whether null means null: the key is set, or a configuration file has it."""
        return key in self._given or bool(self._tree and key in self._tree.entries)


def broken_rules(values: Values, megatron: bool, upstream: CitedCode) -> Iterator[Broken]:
    """The rules these values break. upstream: without a workspace, most of them hold for every version."""
    sizes = _Rules(values, megatron, upstream)
    yield from sizes.layout()
    yield from sizes.batches()
    yield from sizes.micro_batches()


class _Rules:
    def __init__(self, values: Values, megatron: bool, upstream: CitedCode) -> None:
        self._values = values
        self._megatron = megatron
        self._upstream = upstream
        nodes, dies = values.whole("trainer.nnodes"), values.whole("trainer.n_gpus_per_node")
        self._world = nodes * dies if nodes and dies else None

    def layout(self) -> Iterator[Broken]:
        """How the dies are divided."""
        world, whole = self._world, self._values.whole
        if world is None:
            return
        infer = whole(f"{_R}.tensor_model_parallel_size")
        if infer and world % infer and not (self._megatron and self._values.value(f"{_R}.name") == "hf"):
            where = self._rule((_MEGATRON if self._megatron else _FSDP, "is not divisible by infer_tp"))
            yield from self._broken(
                "rollout-parallel-divides-world",
                where,
                f"{world} dies are not divisible by rollout tensor parallel size {infer}",
                f"{_R}.tensor_model_parallel_size",
                "trainer.n_gpus_per_node",
                fix=f"set rollout.tensor_parallel to a divisor of {world}",
            )
        for role in (_A, _F) if self._megatron else ():
            yield from self._model_parallel(f"{role}.megatron", world)
        sequence = whole(f"{_A}.ulysses_sequence_parallel_size", 1) or 1
        if (
            not self._megatron
            and sequence > 1
            and self._values.value("actor_rollout_ref.model.use_remove_padding") is False
        ):
            where = self._rule(
                (_TRAINER, "must enable `use_remove_padding`"), (_ACTOR, "must enable `use_remove_padding`")
            )
            yield from self._broken(
                "sequence-parallel-needs-remove-padding",
                where,
                f"sequence parallel size {sequence} needs model.remove_padding: true",
                f"{_A}.ulysses_sequence_parallel_size",
                "actor_rollout_ref.model.use_remove_padding",
                fix="set model.remove_padding to true, or actor.parallel.sequence to 1",
            )

    def _model_parallel(self, section: str, world: int) -> Iterator[Broken]:
        tensor, pipeline, context = (self._size(section, name) for name in ("tensor", "pipeline", "context"))
        if not (tensor and pipeline and context):
            return
        together = tensor * pipeline * context
        if world % together:
            where = self._rule(
                (_TRAINER, "must be divisible by model_parallel_size"), (_STATE, "is not divisible by")
            )
            text = f"tensor {tensor} x pipeline {pipeline} x context {context} = {together}"
            keys = (f"{section}.{name}" for name in self._names("tensor", "pipeline", "context"))
            yield from self._broken(
                "model-parallel-divides-world",
                where,
                f"{world} dies are not divisible by {text}",
                *keys,
                fix="set actor.parallel.tensor, actor.parallel.pipeline and actor.parallel.context so that their "
                f"product divides {world}",
            )
        expert = self._size(section, "expert")
        inner = self._values.whole(f"{section}.expert_tensor_parallel_size", tensor) or tensor
        if expert and world % (inner * expert * pipeline):
            where = self._rule((_STATE, "expert_tensor_model_pipeline_parallel size"))
            text = (
                f"expert tensor {inner} x expert {expert} x pipeline {pipeline} = {inner * expert * pipeline}"
            )
            keys = (f"{section}.{name}" for name in self._names("expert", "pipeline"))
            yield from self._broken(
                "expert-parallel-divides-world",
                where,
                f"{world} dies are not divisible by {text}",
                *keys,
                fix="set actor.parallel.expert_tensor, actor.parallel.expert and actor.parallel.pipeline so that their "
                f"product divides {world}",
            )

    def _size(self, section: str, name: str) -> int | None:
        (key,) = self._names(name)
        return self._values.whole(f"{section}.{key}")

    @staticmethod
    def _names(*names: str) -> tuple[str, ...]:
        suffixes = {"context": "context_parallel_size"}
        return tuple(suffixes.get(name, f"{name}_model_parallel_size") for name in names)

    def batches(self) -> Iterator[Broken]:
        """How the responses of a step are divided."""
        whole, world = self._values.whole, self._world
        batch, answers = whole("data.train_batch_size"), whole(f"{_R}.n")
        mini = whole(f"{_A}.ppo_mini_batch_size")
        dynamic = self._values.value(f"{_A}.use_dynamic_bsz") is True
        if batch and mini and mini > batch and not dynamic:
            where = self._rule(
                (
                    _TRAINER,
                    "config.data.train_batch_size >= config.actor_rollout_ref.actor.ppo_mini_batch_size",
                ),
                (_ACTOR, "train_batch_size < self.ppo_mini_batch_size"),
            )
            yield from self._broken(
                "mini-batch-within-batch",
                where,
                f"the batch of {batch} prompts is smaller than the mini batch of {mini}",
                f"{_A}.ppo_mini_batch_size",
                "data.train_batch_size",
                fix=f"set actor.mini_batch to {batch} or less, or data.batch to {mini} or more",
            )
        if batch and answers and world:
            yield from self._whole_batch(batch, answers, world)
        micro = whole(f"{_A}.ppo_micro_batch_size_per_gpu")
        if mini and answers and world and micro and not self._megatron and not (batch and mini > batch):
            yield from self._share(mini, answers, world, micro)

    def _whole_batch(self, batch: int, answers: int, world: int) -> Iterator[Broken]:
        smallest, text = self._smallest(world)
        if smallest and batch * answers % smallest:
            where = self._rule((_TRAINER, "real_train_batch_size %"))
            yield from self._broken(
                "batch-divisible-by-dp",
                where,
                f"{batch} prompts x {answers} responses = {batch * answers} is not divisible by {text}",
                "data.train_batch_size",
                f"{_R}.n",
                fix=f"set data.batch to a multiple of {smallest // math.gcd(smallest, answers)}",
            )

    def _smallest(self, world: int) -> tuple[int | None, str]:
        """The smallest batch the trainer accepts, and how it comes about."""
        micro = self._values.whole(f"{_A}.ppo_micro_batch_size_per_gpu")
        sizes = [self._size(f"{_A}.megatron", name) for name in ("tensor", "pipeline", "context")]
        if not self._megatron or not self._upstream.has(_OVER_COPIES):
            return world, f"{world} dies"
        if not micro or not all(sizes):
            return None, ""
        parallel = 1
        for size in sizes:
            parallel *= size or 1
        copies = world // parallel
        return copies * micro, f"{copies} data-parallel replicas x micro batch {micro} = {copies * micro}"

    def _share(self, mini: int, answers: int, world: int, micro: int) -> Iterator[Broken]:
        """What is left of the mini batch on one die (fsdp)."""
        sequence = self._values.whole(f"{_A}.ulysses_sequence_parallel_size", 1) or 1
        copies = world // sequence
        share = mini * answers // copies if copies else 0
        where = self._rule((_FSDP, "should be divisible by"))
        if copies and (share == 0 or share % micro or share < micro):
            text = f"mini batch {mini} x {answers} responses over {copies} dies is {share} a die"
            yield from self._broken(
                "mini-batch-share",
                where,
                f"{text}, not divisible by micro batch {micro}",
                f"{_A}.ppo_micro_batch_size_per_gpu",
                f"{_A}.ppo_mini_batch_size",
                fix=f"set actor.micro_batch to a divisor of {share}"
                if share
                else f"set actor.mini_batch to {-(-copies // answers)} or more",
            )

    def micro_batches(self) -> Iterator[Broken]:
        """verl wants the size per die or the whole one, not both, not neither."""
        value = self._values.value
        if value(f"{_A}.use_dynamic_bsz") is True:
            return
        reference = value(f"{_A}.use_kl_loss") is True or value("algorithm.use_kl_in_reward") is True
        log_prob = "log_prob_micro_batch_size"
        roles = [(_A, "ppo_micro_batch_size"), (_R, log_prob), *([(_F, log_prob)] if reference else [])]
        for section, name in roles:
            one, whole = f"{section}.{name}_per_gpu", f"{section}.{name}"
            if not (self._values.known(one) and self._values.known(whole)):
                continue
            if value(one) is None and value(whole) is None:
                where = self._rule(
                    (_TRAINER, "Please set at least one of"), (_ACTOR, "Please set at least one of")
                )
                yield from self._broken(
                    "micro-batch-missing",
                    where,
                    f"{one} is not set, and the trainer has no default",
                    one,
                    whole,
                    fix=f"set {_WORDS[section]} to the responses a die computes at once, such as 1",
                )
            elif value(one) is not None and value(whole) is not None:
                where = self._rule((_TRAINER, "You have set both"), (_ACTOR, "You have set both"))
                yield from self._broken(
                    "micro-batch-twice",
                    where,
                    f"{one} and {whole} exclude each other",
                    whole,
                    one,
                    fix=f"remove overrides.{whole}, which {_WORDS[section]} replaces",
                )

    def _rule(self, *places: tuple[str, str]) -> str | None:
        """file:line of the first of these texts in the tree; the file's name alone without a workspace."""
        standing = self._upstream.look(*(Place(file, text) for file, text in places))
        return standing.where if standing.holds else None

    @staticmethod
    def _broken(rule: str, where: str | None, message: str, *keys: str, fix: str) -> Iterator[Broken]:
        if where:
            yield Broken(rule, keys, f"{message} ({where})", fix)
