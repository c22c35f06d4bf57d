"""Rules on the number of checkpoints that a run writes, and on their disk space."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from npu_rl.recipes.memory.megatron_memory import STATES, WEIGHT
from npu_rl.recipes.memory.memory_parts import gb
from npu_rl.recipes.plan.rules.rule import Rule
from npu_rl.recipes.recipe.checkpoints_kept import saves_before_deleting_the_last
from npu_rl.recipes.sizing.machine import Machine
from npu_rl.recipes.sizing.plan_inputs import ACTOR, PlanInputs
from npu_rl.recipes.sizing.weight_sizes import count_parameters, routing_biases

CHECKPOINT_RULES = ("checkpoint-disk", "checkpoint-in-a-crash")
_CONTENTS = ("model", "optimizer", "extra")  # verl/utils/checkpoint/checkpoint_manager.py:57@55e3c5b
_EVERY, _KEEP = "trainer.save_freq", "trainer.max_actor_ckpt_to_keep"
_LARGE_DISK = 2 * 10**12  # bytes; more gets advice where the free disk is not known


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of a run.

    Attributes:
        written: Number over the whole run.
        kept: Number on the disk at once, with the one that is being written.
        each: Bytes of one.
    """

    written: int
    kept: int
    each: int

    @property
    def disk(self) -> int:
        """Bytes of the checkpoints that are on the disk at the same time."""
        return self.kept * self.each


def checkpoints_of(facts: PlanInputs) -> Checkpoints | None:
    """Return the run's checkpoints, or None if it doesn't write any or the model's shape is unknown.

    verl writes one every `checkpoint.every` steps and at the last (verl/trainer/ppo/ray_trainer.py:1331@55e3c5b), and
    removes old ones before it writes the next (megatron_checkpoint_manager.py:368@55e3c5b), so that its own number is
    that of the whole ones and the one being written: one more than `checkpoint.keep`. Where it saves before it deletes
    the only one, 1 means one beside the one being written.
    """
    every, keep = facts.whole(_EVERY), facts.whole(_KEEP)
    if facts.shape is None or not every or every < 1:
        return None
    written = -(-facts.recipe.steps // every)
    if keep == 1 and saves_before_deleting_the_last(facts.recipe, facts.upstream):
        keep = 2
    kept = min(written, keep) if keep and keep > 0 else written
    return Checkpoints(written, kept, _checkpoint_size(facts))


def checkpoint_rules(facts: PlanInputs, machine: Machine) -> Iterator[Rule]:
    """Check that the disk has room for the checkpoints; if its size is unknown, advise on very large amounts."""
    found = checkpoints_of(facts)
    if found is None:
        return
    keep, unknown = facts.whole(_KEEP), machine.disk is None
    if not (unknown and (keep or found.written < 2)) and found.disk > (machine.disk or _LARGE_DISK):
        figures = f"{found.kept} x {gb(found.each)} = {gb(found.disk)} at once, {found.written} over "
        figures += f"{facts.recipe.steps} steps" + (f", of {gb(machine.disk)}" if machine.disk else "")
        fix = "set checkpoint.keep to 2, or to one less than the disk holds"
        fix = _fix(facts, found, machine.disk) if machine.disk else fix
        yield Rule("checkpoint-disk", figures, fix, (_KEEP, "checkpoint.keep"), unknown, certain=False)
    setting = facts.given.get(_KEEP)
    loses = setting is not None and setting.from_overrides and keep == 1
    if loses and not saves_before_deleting_the_last(facts.recipe, facts.upstream):
        figures = f"{_KEEP} is 1: verl deletes the only checkpoint before it writes the next"
        fix = f"write checkpoint.keep: 1 in place of overrides.{_KEEP}"
        yield Rule("checkpoint-in-a-crash", figures, fix, (_KEEP,), advice=True, certain=False)


def _fix(facts: PlanInputs, found: Checkpoints, disk: int) -> str:
    """Return how many checkpoints fit on a disk: at least one complete one beside the one being written."""
    fits = disk // found.each if found.each else found.kept
    setting = facts.given.get(_KEEP)
    if setting is not None and setting.from_overrides and fits > 1:
        return f"set {_KEEP} to {fits} in overrides"
    if fits > 1:
        return f"set checkpoint.keep to {fits - 1}"
    needed = gb(2 * found.each)
    return (
        f"give the run a larger disk: checkpoint.keep 1 needs {needed}, one whole checkpoint beside the next"
    )


def _checkpoint_size(facts: PlanInputs) -> int:
    """Return the bytes of one checkpoint.

    Megatron writes bf16 weights and 12 bytes of optimizer states per parameter, FSDP fp32 weights and 8 bytes.
    """
    shape = facts.shape
    assert shape is not None
    named = facts.values.value(f"{ACTOR}.checkpoint.save_contents")
    contents = tuple(map(str, named)) if isinstance(named, list | tuple) else _CONTENTS
    parameters = sum(count_parameters(shape).values())
    weights, states = (WEIGHT, STATES) if facts.recipe.megatron else (4, 8)
    size = 4 * routing_biases(shape) if shape.latent and "model" in contents else 0
    size += weights * parameters if "model" in contents else 0
    size += states * parameters if "optimizer" in contents else 0
    return size + (WEIGHT * parameters if "hf_model" in contents else 0)
