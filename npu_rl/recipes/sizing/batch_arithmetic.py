"""Rules on sizes that verl's trainer and workers assert at the start.

Each rule is looked up in the tree of the workspace and applied only if that tree has it (another version may not, or
a patch may have removed it). Sources: verl@v0.5.0 and @54c9b73, verl/trainer/ppo/ray_trainer.py (_validate_config)
and verl/workers/fsdp_workers.py; Megatron-core 0.12.1, megatron/core/parallel_state.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from npu_rl.recipes.trainer_code.citations import CitedCode, Place
from npu_rl.recipes.trainer_code.config_tree import ConfigTree

_A, _R, _F = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
_TRAINER = "verl/trainer/ppo/ray_trainer.py"
_ACTOR = "verl/workers/config/actor.py"
_CONFIG = "verl/utils/config.py"  # the trainer's checks from verl 0.6 on
_FSDP, _MEGATRON = "verl/workers/fsdp_workers.py", "verl/workers/megatron_workers.py"
_ENGINE = "verl/workers/engine/utils.py"
_DIVIDES = (_ENGINE, "divisible by force_group_size * micro_batch_size_per_gpu")
_STATE = "megatron/core/parallel_state.py"
# Older ones divide the batch by all dies (verl/trainer/ppo/ray_trainer.py:348@54c9b73).
_OVER_REPLICAS = (
    Place(_TRAINER, "minimal_bsz = megatron_dp", ("55e3c5b", "verl==0.5.0")),
    Place(_CONFIG, "minimal_bsz = megatron_dp", ("v0.8.0", "7aed6b2", "8851219")),
)
# From verl 0.8 on the engine reads the second key; the first is copied over it if it is above 1.
_SEQUENCE_KEYS = (f"{_A}.ulysses_sequence_parallel_size", f"{_A}.fsdp_config.ulysses_sequence_parallel_size")
_SEQUENCE_COPIED = Place(
    _ACTOR,
    "self.fsdp_config.ulysses_sequence_parallel_size = self.ulysses_sequence_parallel_size",
    ("v0.8.0", "7aed6b2", "8851219"),
)
_RECIPE_KEYS = {_A: "actor.micro_batch", _R: "rollout.log_prob_micro_batch", _F: "reference.micro_batch"}
_DENSE = ("tensor_model", "pipeline_model", "context")
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?\s*(\.*)([\w.]+)\s*(?:,[^{}]*)?\}")


@dataclass(frozen=True)
class BrokenRule:
    """A rule that the sizes break.

    Attributes:
        rule: Its stable id.
        keys: The trainer's keys it is about, the likeliest to be changed first.
        message: The figures, with the code that asserts them.
        fix: The change, in the recipe's keys.
    """

    rule: str
    keys: tuple[str, ...]
    message: str
    fix: str


class TrainerValues:
    """The values of the trainer's keys: the recipe's, or else those of the configuration files."""

    def __init__(self, given: Mapping[str, Any], tree: ConfigTree | None) -> None:
        self._given = given
        self._tree = tree

    def whole(self, key: str, otherwise: int | None = None) -> int | None:
        """Return an integer value; `otherwise` if it is null, absent or known only at run time."""
        value = self.value(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else otherwise

    def value(self, key: str, depth: int = 0) -> Any:
        """Return the recipe's value, or the files' with references to other keys resolved; None if unknown."""
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
        """Return whether a key is set or in a configuration file, so that a None is a real null."""
        return key in self._given or bool(self._tree and key in self._tree.entries)


def sequence_parallel(values: TrainerValues, upstream: CitedCode) -> tuple[int, str]:
    """Return FSDP's (Ulysses') sequence-parallel size and the trainer's key that sets it."""
    own, engines = _SEQUENCE_KEYS
    size = values.whole(own, 1) or 1
    # The workers of verl 0.7 and older read their own key only.
    if size > 1 or not upstream.has(_SEQUENCE_COPIED) or upstream.text(_FSDP) is not None:
        return size, own
    return values.whole(engines, 1) or 1, engines


def broken_rules(values: TrainerValues, megatron: bool, upstream: CitedCode) -> Iterator[BrokenRule]:
    """Yield the rules that the values break.

    Args:
        values: The trainer's values.
        megatron: Whether the backend is Megatron.
        upstream: The code that has the rules; without a workspace, most of them hold for every version.
    """
    sizes = _Rules(values, megatron, upstream)
    yield from sizes.layout()
    yield from sizes.batches()
    yield from sizes.micro_batches()


def _size_keys(section: str, *names: str) -> list[str]:
    return [f"{section}.{name}_parallel_size" for name in names]


class _Rules:
    def __init__(self, values: TrainerValues, megatron: bool, upstream: CitedCode) -> None:
        self._values = values
        self._megatron = megatron
        self._upstream = upstream
        nodes, dies = values.whole("trainer.nnodes"), values.whole("trainer.n_gpus_per_node")
        self._world = nodes * dies if nodes and dies else None

    def layout(self) -> Iterator[BrokenRule]:
        """Yield the broken rule on FSDP's sequence parallelism."""
        sequence, key = sequence_parallel(self._values, self._upstream)
        padding = "actor_rollout_ref.model.use_remove_padding"
        if not self._megatron and sequence > 1 and self._values.value(padding) is False:
            yield from self._report(
                "sequence-parallel-needs-remove-padding",
                self._find_text("must enable `use_remove_padding`", _TRAINER, _ACTOR),
                f"sequence parallel size {sequence} needs model.remove_padding: true",
                key,
                padding,
                fix="set model.remove_padding to true, or actor.parallel.sequence to 1",
            )

    def batches(self) -> Iterator[BrokenRule]:
        """Yield broken rules on how the responses of a step are divided."""
        whole, world = self._values.whole, self._world
        batch, responses = whole("data.train_batch_size"), whole(f"{_R}.n")
        mini = whole(f"{_A}.ppo_mini_batch_size")
        dynamic = self._values.value(f"{_A}.use_dynamic_bsz") is True
        if batch and mini and mini > batch and not dynamic:
            asserts = "config.data.train_batch_size >= config.actor_rollout_ref.actor.ppo_mini_batch_size"
            raises = "train_batch_size < self.ppo_mini_batch_size"
            where = self._find_rule((_TRAINER, asserts), (_ACTOR, raises))
            yield from self._report(
                "mini-batch-within-batch",
                where,
                f"the batch of {batch} prompts is smaller than the mini batch of {mini}",
                f"{_A}.ppo_mini_batch_size",
                "data.train_batch_size",
                fix=f"set actor.mini_batch to {batch}, or data.batch to {mini}",
            )
        if batch and responses and world:
            yield from self._whole_batch(batch, responses, world)
        micro = whole(f"{_A}.ppo_micro_batch_size_per_gpu")
        if mini and responses and world and micro and not self._megatron and not (batch and mini > batch):
            yield from self._fsdp_share(mini, responses, world, micro)

    def _whole_batch(self, batch: int, responses: int, world: int) -> Iterator[BrokenRule]:
        smallest, text = self._smallest_batch(world)
        if smallest and batch * responses % smallest:
            where = self._find_rule((_TRAINER, "real_train_batch_size %"))
            if where is None and self._values.value(f"{_A}.use_dynamic_bsz") is not True:
                where = self._find_rule((_CONFIG, "real_train_batch_size %"))
            yield from self._report(
                "batch-divisible-by-dp",
                where,
                f"{batch} prompts x {responses} responses = {batch * responses} is not divisible by {text}",
                "data.train_batch_size",
                f"{_R}.n",
                fix=f"set data.batch to a multiple of {smallest // math.gcd(smallest, responses)}",
            )

    def _smallest_batch(self, world: int) -> tuple[int | None, str]:
        """Return the smallest batch that the trainer accepts, and how it is computed."""
        micro = self._values.whole(f"{_A}.ppo_micro_batch_size_per_gpu")
        sizes = [self._values.whole(key) for key in _size_keys(f"{_A}.megatron", *_DENSE)]
        if not self._megatron or not self._upstream.has(*_OVER_REPLICAS):
            return world, f"{world} dies"
        if not micro or not all(sizes):
            return None, ""
        replicas = world // math.prod(size or 1 for size in sizes)
        smallest = replicas * micro
        return smallest, f"{replicas} data-parallel replicas x micro batch {micro} = {smallest}"

    def _fsdp_share(self, mini: int, responses: int, world: int, micro: int) -> Iterator[BrokenRule]:
        """Yield broken rules on the share of the mini batch on one die (FSDP)."""
        sequence, _ = sequence_parallel(self._values, self._upstream)
        replicas = world // sequence
        share = mini * responses // replicas if replicas else 0
        where = self._find_rule((_FSDP, "should be divisible by"))
        if replicas and (share == 0 or share % micro or share < micro):
            text = f"mini batch {mini} x {responses} responses over {replicas} dies is {share} a die"
            yield from self._report(
                "mini-batch-share",
                where,
                f"{text}, not divisible by micro batch {micro}",
                f"{_A}.ppo_micro_batch_size_per_gpu",
                f"{_A}.ppo_mini_batch_size",
                fix=f"set actor.micro_batch to a divisor of {share}"
                if share
                else f"set actor.mini_batch to {-(-replicas // responses)} or more",
            )

    def micro_batches(self) -> Iterator[BrokenRule]:
        """Yield broken rules on the sizes of micro batches.

        verl needs either the size per die or the total, not both.
        """
        value = self._values.value
        reference = value(f"{_A}.use_kl_loss") is True or value("algorithm.use_kl_in_reward") is True
        if value(f"{_A}.use_dynamic_bsz") is True:
            yield from self._unpacked_reference() if reference else ()
            return
        log_prob, checks = "log_prob_micro_batch_size", (_TRAINER, _ACTOR, _CONFIG)
        roles = [(_A, "ppo_micro_batch_size"), (_R, log_prob), *([(_F, log_prob)] if reference else [])]
        for section, name in roles:
            one, whole = f"{section}.{name}_per_gpu", f"{section}.{name}"
            if not (self._values.known(one) and self._values.known(whole)):
                continue
            if value(one) is None and value(whole) is None:
                yield from self._report(
                    "micro-batch-missing",
                    self._find_text("Please set at least one of", *checks),
                    f"{one} is not set, and the trainer has no default",
                    one,
                    whole,
                    fix=f"set {_RECIPE_KEYS[section]} to the responses a die computes at once, such as 1",
                )
            elif value(one) is not None and value(whole) is not None:
                yield from self._report(
                    "micro-batch-twice",
                    self._find_text("You have set both", *checks),
                    f"{one} and {whole} exclude each other",
                    whole,
                    one,
                    fix=f"remove overrides.{whole}, which {_RECIPE_KEYS[section]} replaces",
                )
            elif value(one) is None:  # newer engines read the size per die only
                yield from self._report(
                    "micro-batch-missing",
                    self._find_rule(_DIVIDES),
                    f"{one} is not set, and the engine does not read {whole}",
                    one,
                    whole,
                    fix=f"set {_RECIPE_KEYS[section]} in place of overrides.{whole}",
                )

    def _unpacked_reference(self) -> Iterator[BrokenRule]:
        """Report a missing micro batch of the reference if the actor's are packed by tokens and its own aren't.

        verl's validation passes over it then, and the reference's engine divides its share by null.
        """
        size, packed = f"{_F}.log_prob_micro_batch_size_per_gpu", f"{_F}.log_prob_use_dynamic_bsz"
        if self._values.value(packed) is False and self._values.value(size) is None:
            yield from self._report(
                "micro-batch-missing",
                self._find_rule(_DIVIDES),
                f"{packed} is false, and {size} is not set",
                packed,
                size,
                fix=f"set overrides.{packed} to true, or {_RECIPE_KEYS[_F]} to the responses a die computes at once",
            )

    def _find_text(self, text: str, *files: str) -> str | None:
        """Return file:line of a text in the first file that contains it, like `_find_rule`."""
        return self._find_rule(*((file, text) for file in files))

    def _find_rule(self, *places: tuple[str, str]) -> str | None:
        """Return file:line of the first text found in the tree (only the file without a workspace); None if absent."""
        status = self._upstream.find(*(Place(file, text) for file, text in places))
        return status.where if status.holds else None

    @staticmethod
    def _report(rule: str, where: str | None, message: str, *keys: str, fix: str) -> Iterator[BrokenRule]:
        if where:
            yield BrokenRule(rule, keys, f"{message} ({where})", fix)
