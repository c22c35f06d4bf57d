"""Memory of vLLM's engine on a die, as divided by vllm-ascend: its configured share, and memory beyond it.

NPUWorker.determine_available_memory (vllm_ascend/worker/worker_v1.py:158@v0.9.1rc2) gives the KV cache `share x total
- peak`. `peak` is the most that torch held in a forward pass of the largest batch, so it includes what training left
on the die, and memory outside torch: HCCL's buffers allocated until then and CANN's context. vLLM's own worker for
CUDA (vllm/v1/worker/gpu_worker.py:183@v0.9.1) computes the same. A server of vLLM 0.18 or 0.23 is a process of its own
that counts only itself: training is beside its share (device_overhead.counts_only_itself).
"""

from __future__ import annotations

from dataclasses import dataclass

from npu_rl.recipes.memory.activations import Activations
from npu_rl.recipes.memory.device_overhead import Overhead
from npu_rl.recipes.memory.memory_parts import Part, Parts, present, total
from npu_rl.recipes.sizing.model_config import ModelConfig
from npu_rl.recipes.sizing.parallelism import RolloutSizes
from npu_rl.recipes.sizing.plan_inputs import ROLLOUT, PlanInputs
from npu_rl.recipes.sizing.weight_sizes import (
    Counts,
    absorbed_projections,
    cache_per_token,
    rollout_share,
    stage,
)

SHARE = f"{ROLLOUT}.gpu_memory_utilization"
_WEIGHT = 2
_BLOCK = {"npu": 128, "cuda": 16, "cpu": 16}  # vllm_ascend/platform.py:190@v0.9.1rc2; vLLM's own default
_BATCHED_TOKENS = 8192  # verl's default of max_num_batched_tokens
_SAMPLED = 16  # bytes a word and sequence: logits, probabilities, noise and log-probs in fp32


@dataclass(frozen=True)
class KvCache:
    """The KV cache of one die.

    Attributes:
        size: Bytes that are left for it.
        per_token: Bytes of one token.
        block: Tokens of a block.
        sequences: Sequences decoded at once, if known.
        length: Tokens of the longest sequence, if known.
    """

    size: int
    per_token: int
    block: int
    sequences: int | None
    length: int | None

    @property
    def blocks(self) -> int:
        """The blocks that sequences can use, without vLLM's null block (vllm/v1/core/block_pool.py:66@v0.9.1)."""
        return max(0, self.size // max(1, self.block * self.per_token) - 1)

    @property
    def blocks_of_sequence(self) -> int | None:
        """The blocks of one sequence of the longest length, if known."""
        return -(-self.length // self.block) if self.length else None

    @property
    def wanted(self) -> int | None:
        """The blocks of all sequences at their full length, if known."""
        each = self.blocks_of_sequence
        return self.sequences * each if self.sequences and each else None


@dataclass(frozen=True)
class EngineMemory:
    """The engine's memory on one die.

    Attributes:
        counts: Parameters by component.
        share: Its share of the die's memory; None if it isn't set.
        room: The share in bytes.
        own: Weights and the tensors derived from them.
        profiled: What else the engine subtracts before it allocates its cache.
        outside: What exceeds the share while it generates.
        left: Bytes of training on the die when the engine starts.
        cache: The KV cache.
    """

    counts: Counts
    share: float | None
    room: int
    own: Parts
    profiled: Parts
    outside: Parts
    left: int
    cache: KvCache

    def parts(self, cache: int) -> Parts:
        """Return all parts of the engine's memory with a cache of the given size."""
        others = (*self.own.items(), *self.profiled.items(), *self.outside.items())
        return present([*others, (Part.KV_CACHE, cache)])


def engine_of(
    facts: PlanInputs, shape: ModelConfig, sizes: RolloutSizes, die: int, left: int, overhead: Overhead
) -> EngineMemory:
    """Return the engine's memory on a die of `die` bytes, where training has `left` bytes when the engine starts."""
    together = sizes.tensor * sizes.data if facts.expert_parallel else 1
    counts = stage(shape, range(shape.layers), rollout_share(sizes.tensor, together, sizes.data))
    derived = _WEIGHT * absorbed_projections(shape, sizes.tensor)
    own = present([(Part.ENGINE_WEIGHTS, _WEIGHT * sum(counts.values())), (Part.ENGINE_DERIVED, derived)])
    sequences = _decoded_sequences(facts)
    # a forward pass of the largest batch, including its logits
    tokens = facts.whole(f"{ROLLOUT}.max_num_batched_tokens") or _BATCHED_TOKENS
    logits = 2 * _WEIGHT * (sequences or 1) * shape.vocabulary
    forward = Activations(shape, sizes.tensor).forward_peak(tokens) + logits
    profiled = present([(Part.ENGINE_ACTIVATIONS, forward), *overhead.inside.items()])
    sampling = _SAMPLED * (sequences or 1) * shape.vocabulary
    outside = present([(Part.SAMPLING, sampling), *overhead.outside.items()])
    share = facts.values.value(SHARE)
    share = float(share) if isinstance(share, int | float) and not isinstance(share, bool) else None
    room = int(share * die) if share is not None else 0
    block = facts.whole(f"{ROLLOUT}.engine_kwargs.vllm.block_size") or _BLOCK[facts.recipe.device]
    in_fp32 = facts.values.value(f"{ROLLOUT}.dtype") in ("float32", "float")
    per_token = cache_per_token(shape, sizes.tensor, 4 if in_fp32 else _WEIGHT)
    length = facts.whole(f"{ROLLOUT}.max_model_len") or facts.length
    forced = facts.whole(f"{ROLLOUT}.engine_kwargs.vllm.num_gpu_blocks_override")
    if forced is not None:
        size = forced * block * per_token
    elif share is None:
        size = (sequences or 0) * (length or 0) * per_token
    else:
        size = max(0, room - left - total(own) - total(profiled))
    cache = KvCache(size, per_token, block, sequences, length)
    return EngineMemory(counts, share, room, own, profiled, outside, left, cache)


def _decoded_sequences(facts: PlanInputs) -> int | None:
    """Return how many sequences an engine decodes at once, at most its share of the batch; None if unknown."""
    share = -(-facts.generated // facts.engines) if facts.generated and facts.engines else None
    if facts.ascend_scheduler_forced:  # cann-recipes-train's rollout takes its share as max_num_seqs
        return share
    given = facts.whole(f"{ROLLOUT}.max_num_seqs")
    return min(given, share) if given and share else given or share
