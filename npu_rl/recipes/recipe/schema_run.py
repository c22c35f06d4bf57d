"""The sections of a recipe about the run: machines, logging, checkpoints, exceptions to rules."""

# No `from __future__ import annotations`: pydantic would compile and evaluate the text of each annotation.

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError

from npu_rl.common.yaml_documents.strict_model import Fault, Strict
from npu_rl.recipes.recipe import recipe_fields as f
from npu_rl.recipes.recipe.recipe_fields import setting

_trainer = partial(setting, "trainer.")
_DIES_PER_CARD = 2  # an Atlas A3 card; the older ones have one
_MOST_DIES = 100_000  # of all machines: process groups and layouts are counted rank by rank


class Cluster(Strict):
    """The machines. A die is what the trainer calls a GPU; an Atlas A3 card has two, a GPU is one."""

    nodes: f.Positive = _trainer("Machines.", "nnodes", default=1)
    dies: f.Positive = _trainer("Dies per machine.", "n_gpus_per_node", default=...)
    dies_per_card: f.Positive = Field(default=1, description="2 on Atlas A3; for tokens per second and card.")
    die_memory_gb: f.AboveZero = Field(
        default=64.0,
        description="Memory of a die, in 10^9 bytes, that the plan assumes; required for cuda.",
    )
    address: f.Address | None = f.optional(
        "HOST:PORT of a running Ray head, which is trusted; left out, one machine starts its own."
    )
    interface: f.Text | None = f.optional(
        "Network interface of HCCL or NCCL, Gloo and Ray, such as enp67s0f5."
    )

    @classmethod
    def rules(cls, data: Mapping[str, Any]) -> Iterator[Fault]:
        """Yield errors of dies that aren't whole cards, and of too many."""
        dies, per_card, nodes = (_whole(data.get(name)) for name in ("dies", "dies_per_card", "nodes"))
        if dies and dies * (nodes or 1) > _MOST_DIES:
            name = "nodes" if dies <= _MOST_DIES else "dies"
            yield (name,), f"makes {dies * (nodes or 1):,} dies in all, more than {_MOST_DIES:,}"
        if per_card and per_card > _DIES_PER_CARD:
            yield ("dies_per_card",), f"must be 1 or {_DIES_PER_CARD}: no Ascend card has {per_card} dies"
        elif dies and per_card and dies > per_card and dies % per_card:
            yield ("dies_per_card",), f"{dies} dies are not whole cards of {per_card} dies"

    @property
    def world(self) -> int:
        """Dies of all machines: the number of ranks."""
        return self.nodes * self.dies


class Logging(Strict):
    """Output that is written during the run."""

    backends: f.OneOrMore[f.Name] = _trainer(
        "The trainer's loggers; console is what npu-rl reads and is always on.",
        "logger",
        default=["console", "tensorboard"],
        min_length=1,
    )
    project: f.Text | None = _trainer(
        "Name of the project in those that have projects.", "project_name", default="npu-rl"
    )
    samples: f.Samples = Field(
        default=True,
        description="Write prompts, responses and scores to samples/: true for those of every step and validation, "
        "validation for those of validations alone, which the trainer decodes anyway.",
    )
    validate_every: f.Whole | None = _trainer(
        "Steps between validations; -1 is never.", "test_freq", default=-1
    )
    validate_first: f.Switch | None = _trainer(
        "Validate before the first step.", "val_before_train", default=False
    )


class Checkpoint(Strict):
    """State that a later `--resume` needs."""

    every: f.Whole | None = _trainer(
        "Steps between checkpoints; -1 is never: a crash then loses everything.", "save_freq", default=-1
    )
    # verl deletes down to one less than its number before it writes the next (verl/utils/checkpoint/
    # fsdp_checkpoint_manager.py:204 and megatron_checkpoint_manager.py:367@v0.5.0): 1 would leave none while it writes,
    # until verl's 1430cb9a0 (#4873, January 2026), from which on 1 stays 1 (checkpoints_kept.py).
    keep: f.Positive | None = _trainer(
        "Whole checkpoints to have at every moment, also while the next is written: the disk has to hold "
        "one more. All if left out.",
        "max_actor_ckpt_to_keep",
        "max_critic_ckpt_to_keep",
        more=1,
    )


class PhaseWatch(Strict):
    """When a run counts as hanging."""

    phase_timeout: f.AboveZero = Field(
        default=120.0,
        description="Least seconds for a step. After them and three times the longest step so far, an alarm "
        "reports where each rank is. The first step, and the first that saves or validates, has three times the "
        "estimate of `npu-rl plan`, and at least 1,800 seconds.",
    )


class PlanExceptions(Strict):
    """Where a person knows better than a rule of `npu-rl plan`."""

    except_: dict[f.Slug, f.Text] = Field(
        alias="except",
        default={},
        description="Rules that don't hold and are overruled, by id, each with the reason; a certain crash can't be.",
    )


class FaultExceptions(Strict):
    """Known faults of the tree that the recipe accepts."""

    accept: dict[f.Slug, f.Text] = Field(
        default={},
        description="Known faults with a wrong result that the tree may have, by id, each with the reason.",
    )


def _whole(value: object) -> int | None:
    """Return a whole number from raw data, or None if it is malformed."""
    try:
        return TypeAdapter(f.Whole).validate_python(value)
    except ValidationError:
        return None
