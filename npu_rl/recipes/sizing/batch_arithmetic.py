"""Rules on sizes that verl's trainer and workers assert at the start.

Each rule is looked up in the tree of the workspace and applied only if that tree has it (another version may not, or
a patch may have removed it). Sources: verl@v0.5.0 and @54c9b73, verl/trainer/ppo/ray_trainer.py (_validate_config)
and verl/workers/fsdp_workers.py; Megatron-core 0.12.1, megatron/core/parallel_state.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from npu_rl.recipes.trainer_code.citations import CitedCode, Place
from npu_rl.recipes.trainer_code.config_tree import ConfigTree

_A, _R, _F = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"
_TRAINER = "verl/trainer/ppo/ray_trainer.py"
_ACTOR = "verl/workers/config/actor.py"
_CONFIG = "verl/utils/config.py"  # the trainer's checks from verl 0.6 on
_FSDP = "verl/workers/fsdp_workers.py"
_ENGINE = "verl/workers/engine/utils.py"
_DIVIDES = Place(_ENGINE, "divisible by force_group_size * micro_batch_size_per_gpu")
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
_MINI, _MICRO = f"{_A}.ppo_mini_batch_size", f"{_A}.ppo_micro_batch_size_per_gpu"
_DENSE = ("tensor_model", "pipeline_model", "context")
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?\s*(\.*)([\w.]+)\s*(?:,[^{}]*)?\}")


class BrokenRule(NamedTuple):
    """A rule that the sizes break.

    Attributes:
        rule: Its stable id.
        places: Alternatives of the code that asserts it.
        message: The figures.
        fix: The change, in the recipe's keys.
        keys: The trainer's keys it is about, the likeliest to be changed first.
    """

    rule: str
    places: tuple[Place, ...]
    message: str
    fix: str
    keys: tuple[str, ...]


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
    """Yield the rules that the values break, with the place that asserts each in the message.

    Args:
        values: The trainer's values.
        megatron: Whether the backend is Megatron.
        upstream: The code that has the rules; without a workspace, most of them hold for every version.
    """
    for found in (
        *_packing(values, megatron, upstream),
        *_batches(values, megatron, upstream),
        *_micro_batches(values),
    ):
        status = upstream.find(*found.places)
        if status.holds and status.where:
            yield found._replace(message=f"{found.message} ({status.where})")


def _in_any(text: str, *files: str) -> tuple[Place, ...]:
    return tuple(Place(file, text) for file in files)


def _packing(values: TrainerValues, megatron: bool, upstream: CitedCode) -> Iterator[BrokenRule]:
    sequence, key = sequence_parallel(values, upstream)
    padding = "actor_rollout_ref.model.use_remove_padding"
    if not megatron and sequence > 1 and values.value(padding) is False:
        yield BrokenRule(
            "sequence-parallel-needs-remove-padding",
            _in_any("must enable `use_remove_padding`", _TRAINER, _ACTOR),
            f"sequence parallel size {sequence} needs model.remove_padding: true",
            "set model.remove_padding to true, or actor.parallel.sequence to 1",
            (key, padding),
        )


def _batches(values: TrainerValues, megatron: bool, upstream: CitedCode) -> Iterator[BrokenRule]:
    """Yield broken rules on how the responses of a step are divided."""
    batch, responses, mini = map(values.whole, ("data.train_batch_size", f"{_R}.n", _MINI))
    nodes, dies = values.whole("trainer.nnodes"), values.whole("trainer.n_gpus_per_node")
    world, micro = (nodes or 0) * (dies or 0), values.whole(_MICRO)
    dynamic = values.value(f"{_A}.use_dynamic_bsz") is True
    smaller = bool(batch and mini and mini > batch)
    if smaller and not dynamic:
        asserts = "config.data.train_batch_size >= config.actor_rollout_ref.actor.ppo_mini_batch_size"
        yield BrokenRule(
            "mini-batch-within-batch",
            (Place(_TRAINER, asserts), Place(_ACTOR, "train_batch_size < self.ppo_mini_batch_size")),
            f"the batch of {batch} prompts is smaller than the mini batch of {mini}",
            f"set actor.mini_batch to {batch}, or data.batch to {mini}",
            (_MINI, "data.train_batch_size"),
        )
    if not (responses and world):
        return
    smallest, text = world, f"{world} dies"
    if megatron and upstream.has(*_OVER_REPLICAS):
        sizes = [values.whole(f"{_A}.megatron.{name}_parallel_size") or 0 for name in _DENSE]
        replicas = world // math.prod(sizes) if all(sizes) else 0
        smallest = replicas * (micro or 0)
        text = f"{replicas} data-parallel replicas x micro batch {micro} = {smallest}"
    if batch and smallest and batch * responses % smallest:
        yield BrokenRule(
            "batch-divisible-by-dp",
            _in_any("real_train_batch_size %", _TRAINER, *(() if dynamic else (_CONFIG,))),
            f"{batch} prompts x {responses} responses = {batch * responses} is not divisible by {text}",
            f"set data.batch to a multiple of {smallest // math.gcd(smallest, responses)}",
            ("data.train_batch_size", f"{_R}.n"),
        )
    replicas = world // sequence_parallel(values, upstream)[0]
    if mini and micro and replicas and not megatron and not smaller:
        share = mini * responses // replicas
        if share == 0 or share % micro:
            text = f"mini batch {mini} x {responses} responses over {replicas} dies is {share} a die"
            yield BrokenRule(
                "mini-batch-share",
                _in_any("should be divisible by", _FSDP),
                f"{text}, not divisible by micro batch {micro}",
                f"set actor.micro_batch to a divisor of {share}"
                if share
                else f"set actor.mini_batch to {-(-replicas // responses)} or more",
                (_MICRO, _MINI),
            )


def _micro_batches(values: TrainerValues) -> Iterator[BrokenRule]:
    """Yield broken rules on micro batches: verl needs either the size per die or the total, not both."""
    value, missing, log_prob = values.value, "micro-batch-missing", "log_prob_micro_batch_size"
    reference = value(f"{_A}.use_kl_loss") is True or value("algorithm.use_kl_in_reward") is True
    if value(f"{_A}.use_dynamic_bsz") is True:
        # verl's validation passes over it then, and the reference's engine divides its share by null
        size, packed = f"{_F}.{log_prob}_per_gpu", f"{_F}.log_prob_use_dynamic_bsz"
        if reference and value(packed) is False and value(size) is None:
            message = f"{packed} is false, and {size} is not set"
            right = f"{_RECIPE_KEYS[_F]} to the responses a die computes at once"
            fix = f"set overrides.{packed} to true, or {right}"
            yield BrokenRule(missing, (_DIVIDES,), message, fix, (packed, size))
        return
    checks = (_TRAINER, _ACTOR, _CONFIG)
    for section, name in ((_A, "ppo_micro_batch_size"), (_R, log_prob), (_F, log_prob)):
        one, whole, key = f"{section}.{name}_per_gpu", f"{section}.{name}", _RECIPE_KEYS[section]
        if not (values.known(one) and values.known(whole)) or (section == _F and not reference):
            continue
        if value(one) is None and value(whole) is None:
            places = _in_any("Please set at least one of", *checks)
            message = f"{one} is not set, and the trainer has no default"
            fix = f"set {key} to the responses a die computes at once, such as 1"
            yield BrokenRule(missing, places, message, fix, (one, whole))
        elif value(one) is not None and value(whole) is not None:
            places = _in_any("You have set both", *checks)
            message, fix = (
                f"{one} and {whole} exclude each other",
                f"remove overrides.{whole}, which {key} replaces",
            )
            yield BrokenRule("micro-batch-twice", places, message, fix, (whole, one))
        elif value(one) is None:  # newer engines read the size per die only
            message = f"{one} is not set, and the engine does not read {whole}"
            fix = f"set {key} in place of overrides.{whole}"
            yield BrokenRule(missing, (_DIVIDES,), message, fix, (one, whole))
