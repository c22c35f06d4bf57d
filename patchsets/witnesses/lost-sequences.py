"""vllm-ascend's scheduler loses a response in a short KV cache.

The scheduler takes whole prompts. When the cache is full it preempts a running sequence; what has become longer than a
step by then is dropped without a response (vllm_ascend/core/scheduler.py:156,290@v0.9.1rc2, the same at f20869e), and
LLM.generate waits for it for ever. The scheduler and its configuration are the tree's; `Runner` stands for the model
runner: it keeps every token in the slots of the cache that the scheduler's block tables name, and its next token,
greedy, is a sum over what it reads there. So a token is another one as soon as a block was given to somebody else, or
its sequence was cut.

"lost" are the responses that are missing, "changed" the cases with other tokens than in an ample cache, by case;
"preempted" and "most" are how many times a sequence was and how many ran at once. "refused" is the text where the
tree's configuration refuses a step that is shorter than a sequence may get.
"""

from __future__ import annotations

from inspect import signature
from types import SimpleNamespace
from typing import Any

from witness_common import show

STAND_INS = ("npu",)
ENVIRONMENT = {"VLLM_PLUGINS": "none", "VLLM_USE_V1": "1", "VLLM_VERSION": "0.9.1"}

STEP, LENGTH, BLOCK = 1024, 4096, 128  # tokens
PAIR = {"first": 1020, "second": 1020}  # of 40 more each they are nine blocks, and longer than a step
MANY = {f"prompt {number}": 100 + 77 * number for number in range(9)}  # up to 12 blocks with 700 more
# Prompts, response, blocks of which one is vLLM's own, and the step.
CASES: dict[str, tuple[dict[str, int], int, int, int]] = {
    "ample": (PAIR, 40, 64, STEP),
    "exact": (PAIR, 40, 19, STEP),
    "short": (PAIR, 40, 18, STEP),
    "many, ample": (MANY, 700, 1000, STEP),
    "many, short": (MANY, 700, 40, STEP),
    "many, one at a time": (MANY, 700, 13, STEP),
    "a step of all": (PAIR, 40, 18, 4096),  # it holds a preempted sequence again
}


def main() -> dict[str, Any]:
    import torch_npu

    torch_npu._C._NPUTaskGroupHandle = object  # a type that vllm_ascend/utils.py annotates with, nothing more
    import vllm  # noqa: F401  (before vllm_ascend)

    try:
        of_ascend(STEP)
    except ValueError as error:  # a step as short is refused, so no sequence gets longer than one
        return {"fault": False, "refused": str(error)}
    cases = {name: served(*case) for name, case in CASES.items()}
    lost = {name: sum(end != "length" for end in case["ended"].values()) for name, case in cases.items()}
    ample = {name: cases["many, ample" if name.startswith("many") else "ample"]["tokens"] for name in cases}
    changed = [name for name, case in cases.items() if case["tokens"] != ample[name]]
    counts = {key: {name: case[key] for name, case in cases.items()} for key in ("preempted", "most")}
    return {"fault": any(lost.values()) or bool(changed), "lost": lost, "changed": changed, **counts}


def config(step: int, chunked: bool) -> Any:
    from vllm.config import SchedulerConfig

    return SchedulerConfig(
        max_num_batched_tokens=step, max_num_seqs=64, max_model_len=LENGTH, enable_chunked_prefill=chunked
    )


def of_ascend(step: int) -> Any:
    from vllm_ascend.core.schedule_config import AscendSchedulerConfig

    return AscendSchedulerConfig.initialize_from_config(config(step, True), SimpleNamespace(enabled=True))


def served(prompts: dict[str, int], response: int, blocks: int, step: int) -> dict[str, Any]:
    """Serve `prompts` (name: tokens) until all are finished, or nothing has been scheduled for some steps."""
    from vllm import SamplingParams
    from vllm.v1.request import Request

    scheduler, runner = make(of_ascend(step), blocks), Runner(blocks)
    for name, length in prompts.items():
        tokens = [sum(map(ord, name)) + place for place in range(length)]
        sampling = SamplingParams(max_tokens=response, temperature=0.0)
        pooling = {"pooling_params": None} if "pooling_params" in signature(Request).parameters else {}
        scheduler.add_request(
            Request(name, tokens, None, None, None, sampling_params=sampling, eos_token_id=-1, **pooling)
        )
    found: dict[str, Any] = {"ended": dict.fromkeys(prompts, "no response"), "preempted": 0, "most": 0}
    requests, idle = dict(scheduler.requests), 0
    while scheduler.requests and idle < 3:
        waited = {one.request_id for one in scheduler.running}
        step_of = scheduler.schedule()
        idle = 0 if step_of.num_scheduled_tokens else idle + 1
        found["preempted"] += len(waited - {one.request_id for one in scheduler.running})
        found["most"] = max(found["most"], len(scheduler.running))
        for outputs in scheduler.update_from_output(step_of, runner.run(scheduler, step_of)).values():
            found["ended"] |= {
                one.request_id: str(one.finish_reason)
                for one in outputs.outputs
                if one.finish_reason is not None
            }
    found["tokens"] = {name: list(one.output_token_ids) for name, one in requests.items()}
    return found


class Runner:
    """Stand-in for the model runner: a KV cache of `blocks` blocks, and a next token that depends on it."""

    def __init__(self, blocks: int) -> None:
        self._cache = [[-1] * BLOCK for _ in range(blocks)]

    def run(self, scheduler: Any, step: Any) -> Any:
        from vllm.v1.outputs import ModelRunnerOutput

        names = list(step.num_scheduled_tokens)
        # vLLM 0.9.1 and 0.10 have one of these each.
        empty = {"spec_token_ids": None, "pooler_output": [None] * len(names)}
        fields = signature(ModelRunnerOutput).parameters
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: place for place, name in enumerate(names)},
            sampled_token_ids=[
                [self._next(scheduler, name, step.num_scheduled_tokens[name])] for name in names
            ],
            logprobs=None,
            prompt_logprobs_dict={},
            **{name: value for name, value in empty.items() if name in fields},
        )

    def _next(self, scheduler: Any, name: str, scheduled: int) -> int:
        """Write the scheduled tokens into their slots, and read all of the sequence's cache entries."""
        request = scheduler.requests[name]
        (table,) = scheduler.kv_cache_manager.get_block_ids(name)
        computed = request.num_computed_tokens  # `schedule` has counted this step's already
        for place in range(computed - scheduled, computed):
            self._cache[table[place // BLOCK]][place % BLOCK] = request.all_token_ids[place]
        read = (self._cache[table[place // BLOCK]][place % BLOCK] for place in range(computed))
        return sum((place + 1) * token for place, token in enumerate(read)) % 997


def make(ascend: Any, blocks: int) -> Any:
    """Return a scheduler for a cache of `blocks` blocks, one of which vLLM reserves."""
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
        parallel_config=SimpleNamespace(data_parallel_rank=0, data_parallel_size=1, pipeline_parallel_size=1),
        model_config=SimpleNamespace(is_multimodal_model=False, is_encoder_decoder=False),
    )
    plain_text = SimpleNamespace(should_advance=lambda request: False)
    return AscendScheduler(config, KVCacheConfig(blocks, [], [group]), structured_output_manager=plain_text)


if __name__ == "__main__":
    show(main)
