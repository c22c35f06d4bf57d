"""What vllm-ascend's own scheduler does with prompts that are as long as a step, or longer; see `main`.

    python run_ascend_scheduler.py

vllm, vllm_ascend and the stand-in for torch_npu are on the path. The scheduler and its configuration are the real
ones; a model that answers every request with the same token stands for the model runner. Prints JSON: [what
vLLM's own configuration says to a step shorter than the model's length, with and without chunked prefill; how the
requests of each case ended].
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

STEP, LENGTH, BLOCK = 1024, 4096, 128  # tokens
ANSWER = 40


def main() -> list[Any]:
    import torch_npu

    torch_npu._C._NPUTaskGroupHandle = object  # a type that vllm_ascend/utils.py annotates with, nothing more
    import vllm  # noqa: F401  (before vllm_ascend)
    from vllm.config import SchedulerConfig
    from vllm_ascend.core.schedule_config import AscendSchedulerConfig

    def config(chunked: bool) -> Any:
        return SchedulerConfig(
            max_num_batched_tokens=STEP, max_num_seqs=64, max_model_len=LENGTH, enable_chunked_prefill=chunked
        )

    said = []
    for chunked in (False, True):
        try:
            said.append(f"{config(chunked).max_num_batched_tokens} tokens")
        except ValueError as error:
            said.append(str(error))
    ascend = AscendSchedulerConfig.initialize_from_config(config(True), SimpleNamespace(enabled=True))
    said.append(f"{ascend.max_num_batched_tokens} tokens, chunked: {ascend.chunked_prefill_enabled}")
    return [
        said,
        answers(ascend, {"longer": STEP + 1, "as long": STEP, "short": 5}, blocks=64),
        preempted(ascend),
    ]


def preempted(ascend: Any) -> dict[str, str]:
    """Two prompts of eight blocks each, and room for seventeen: one of them has to give way as both grow."""
    return answers(ascend, {"first": STEP - 4, "second": STEP - 4}, blocks=18)


def answers(ascend: Any, prompts: dict[str, int], blocks: int) -> dict[str, str]:
    """For each prompt (name: tokens) why its answer ended, or that it never came while the engine still waits."""
    from vllm import SamplingParams
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    scheduler = make(ascend, blocks)
    for name, length in prompts.items():
        scheduler.add_request(
            Request(
                name,
                list(range(length)),
                None,
                None,
                None,
                SamplingParams(max_tokens=ANSWER),
                eos_token_id=-1,
            )
        )
    ended = dict.fromkeys(prompts, "no answer")
    for _ in range(3 * ANSWER):
        step = scheduler.schedule()
        names = list(step.num_scheduled_tokens)
        made = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: place for place, name in enumerate(names)},
            sampled_token_ids=[[7]] * len(names),
            spec_token_ids=None,
            logprobs=None,
            prompt_logprobs_dict={},
        )
        for outputs in scheduler.update_from_output(step, made).values():
            ended |= {
                one.request_id: str(one.finish_reason)
                for one in outputs.outputs
                if one.finish_reason is not None
            }
    return ended


def make(ascend: Any, blocks: int) -> Any:
    """A scheduler over a cache of `blocks` blocks, one of which vLLM keeps for itself."""
    import torch
    from vllm.config import CacheConfig
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm_ascend.core.scheduler import AscendScheduler

    cache = CacheConfig(block_size=BLOCK, swap_space=0, enable_prefix_caching=False)
    cache.num_gpu_blocks = blocks
    group = KVCacheGroupSpec(["a layer"], FullAttentionSpec(BLOCK, 1, 1, torch.float32, False))
    config = SimpleNamespace(
        scheduler_config=ascend,
        cache_config=cache,
        lora_config=None,
        kv_events_config=None,
        kv_transfer_config=None,
        speculative_config=None,
        parallel_config=SimpleNamespace(data_parallel_rank=0, data_parallel_size=1),
        model_config=SimpleNamespace(is_multimodal_model=False, is_encoder_decoder=False),
    )
    plain_text = SimpleNamespace(should_advance=lambda request: False)
    return AscendScheduler(config, KVCacheConfig(blocks, [], [group]), structured_output_manager=plain_text)


if __name__ == "__main__":
    print("\n" + json.dumps(main()))
