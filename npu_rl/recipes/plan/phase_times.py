"""The time limit of the first step before it counts as hanging: three times its roughly estimated seconds.

Nobody knows the lengths of responses before a run, so all sequences count as the longest that the recipe allows, and a
short phase is estimated as far too long. Nothing of it was measured by us. What it rests on:

- Floating-point operations as verl counts them (verl/utils/flops_counter.py@v0.8.0): 2 for each active parameter and
  token and 4 L^2 x heads x head_dim for each layer and sequence, forward; three times that with the backward pass, and
  once more for recomputation, which is counted always.
- The peak of a device from the same file: 354e12 for 910B and Ascend910 (a die of Atlas A3), and of GPUs the H20's
  148e12, the least of those with the memory for these recipes.
- `UTILISATION` of the peak is ours, below both runs that can be set beside it: the update of deepseek-r1-zero's
  document had 11 % (495.5 s on 256 dies), the whole step of verl's nightly GSPO run 3 % (90.4 s on 16), as if its
  sequences had had their full length.
- `DECODING`, seconds of one token of all sequences that an engine holds: the same document's 495.5 - 67.6 s of
  generation for up to 3,072 tokens, 0.14 s. Smaller models are faster.
- `FIRST` is ours: operators are compiled, graphs captured and communicators made in the first of each phase.
"""

from __future__ import annotations

from collections.abc import Mapping

from npu_rl.recipes.sizing.model_config import ModelConfig
from npu_rl.recipes.sizing.plan_inputs import ACTOR, ROLLOUT, PlanInputs
from npu_rl.recipes.sizing.weight_sizes import EMBEDDING, EXPERTS, count_parameters

PEAK = {"npu": 354e12, "cuda": 148e12}  # operations a second of a device, in bf16
UTILISATION = 0.02
DECODING = 0.15  # seconds
FIRST = 200.0  # seconds
FACTOR = 3.0
MOST = 1800.0  # seconds that the first step has at least, and each stage before it
_UPDATE = 4  # times the operations of a forward pass


def first_step_limit(estimates: Mapping[str, float]) -> float:
    """Return the seconds after which the first step counts as hanging, from the estimates of its phases."""
    return max(FACTOR * sum(estimates.values()), MOST)


def phase_times_of(facts: PlanInputs) -> dict[str, float]:
    """Return estimated seconds by the trainer's name of the phase, each with FIRST.

    Empty on a CPU, without the model's shape, and without the batch and the lengths. Phases that follow from no size
    of the recipe, such as rewards and saves, are left out.
    """
    peak, shape = PEAK.get(facts.recipe.device), facts.shape
    response, length = facts.whole("data.max_response_length"), facts.length
    if peak is None or shape is None or not (facts.generated and facts.responses and response and length):
        return {}
    forward = _forward(shape, length) / (facts.world * peak * UTILISATION)
    epochs = facts.whole(f"{ACTOR}.ppo_epochs") or 1
    work = {
        "gen": _waves(facts, facts.generated) * response * DECODING,
        "old_log_prob": facts.responses * forward,
        "ref": facts.responses * forward,
        "update_actor": facts.responses * forward * _UPDATE * epochs,
    }
    return {phase: FIRST + seconds for phase, seconds in work.items()}


def _forward(shape: ModelConfig, length: int) -> float:
    """Return the operations of one sequence's forward pass."""
    counts = count_parameters(shape)
    idle = counts[EXPERTS] * (1 - shape.experts_per_token / shape.experts) if shape.experts else 0.0
    active = sum(counts.values()) - counts[EMBEDDING] - idle
    return 2.0 * active * length + 4.0 * length**2 * shape.heads * shape.head_dim * shape.layers


def _waves(facts: PlanInputs, sequences: int) -> int:
    """Return the number of waves of an engine, which decodes `max_num_seqs` sequences at once."""
    each = -(-sequences // (facts.engines or 1))
    return -(-each // max(facts.whole(f"{ROLLOUT}.max_num_seqs") or each, 1))
