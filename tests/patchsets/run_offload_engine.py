"""Let vLLM's own V1 engine sleep and wake by hand on a CPU, and print its answers and the memory.

    python run_offload_engine.py FOLDER

On PYTHONPATH: the stand-ins for what vLLM has compiled, and a tree with vLLM. FOLDER is empty: two tiny random
DeepSeek-V3 are made in it, with YaRN. The engine starts with the first one's weights and gets the second's, the first's
and again the first's, in the parts and under the names that a checkpoint has. The output is one line of JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from npu_rl_runtime import rollout_offload
from vllm import LLM, SamplingParams
from vllm.engine.arg_utils import EngineArgs

from tests.runtime.tiny_engine import live_bytes
from tests.standins.vllm.models import deepseek

PROMPTS = [
    [3, 4, 5, 6, 7] * 7,
    [9, 8],
    [3, 4, 5, 6, 7] * 7 + [1],
]  # the last has the first's block as a prefix


def answers(llm: Any) -> list[Any]:
    """Tokens and log-probabilities, greedy."""
    sampling = SamplingParams(temperature=0.0, max_tokens=12, logprobs=0, ignore_eos=True, detokenize=False)
    done = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], sampling, use_tqdm=False)
    return [
        [[token, place[token].logprob] for token, place in zip(one.token_ids, one.logprobs, strict=True)]
        for one in (request.outputs[0] for request in done)
    ]


def error_of(call: Any, *arguments: Any) -> str:
    try:
        call(*arguments)
    except RuntimeError as error:
        return str(error)
    return ""


class Leaving:
    """As verl's sharding manager: its `__exit__` lets the engine sleep."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._llm.sleep(level=2)


def failure(llm: Any, runner: Any) -> list[str]:
    """The exceptions that come out of a `generate` whose third step fails, the last one first."""
    run, steps = runner.execute_model, iter(range(3))

    def execute_model(*arguments: Any) -> Any:
        if next(steps) == 2:
            raise ArithmeticError("a kernel has failed")
        return run(*arguments)

    runner.execute_model = execute_model
    try:
        with Leaving(llm):
            answers(llm)
    except (ArithmeticError, RuntimeError) as error:
        chain: list[str] = []
        one: BaseException | None = error
        while one is not None:
            chain.append(f"{type(one).__name__}: {one}")
            one = one.__context__
        return chain
    finally:
        runner.execute_model = run
    return []


def main(folder: Path) -> Any:
    # V1 refuses float32, for its attention kernels on GPUs. Here it tells rounding from errors.
    EngineArgs._is_v1_supported_oracle = lambda *_: True
    models = [deepseek(folder / str(seed), seed, yarn=True) for seed in (1, 2)]
    llm = LLM(
        model=str(folder / "1"), dtype="float32", distributed_executor_backend="external_launcher",
        enable_sleep_mode=rollout_offload.sleep_mode(True), enable_prefix_caching=True, enforce_eager=True,
        max_model_len=64, max_num_seqs=4, block_size=16, disable_log_stats=True,
    )  # fmt: skip
    core = llm.llm_engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    model = runner.model
    sent = [one.state_dict() for one in models]
    del models
    found: dict[str, Any] = {"first": answers(llm), "rounds": [], "awake": [], "asleep": []}
    pool = core.scheduler.kv_cache_manager.block_pool
    found["blocks"] = [pool.num_gpu_blocks, len(runner.kv_caches[0][0])]
    rollout_offload.install(llm)
    awake = live_bytes()
    found["wrong"] = []
    for number in (1, 0, 0):
        llm.sleep(level=2)
        found["asleep"].append(awake - live_bytes())
        found["wrong"].append(error_of(answers, llm))
        llm.wake_up(tags=["weights"])
        found["wrong"].append(error_of(llm.wake_up, ["kv_cache"]))
        for name, one in model.named_parameters():  # as verl/utils/vllm/patch.py@55e3c5b
            if name.endswith(("w13_weight", "w2_weight")):
                one.weight_loader = model.get_submodule(name.rpartition(".")[0]).weight_loader
        model.load_weights((name, one.clone()) for name, one in sent[number].items())
        llm.wake_up(tags=["kv_cache"])
        found["rounds"].append(answers(llm))
        found["awake"].append(awake - live_bytes())
    found["weights"] = sum(one.nbytes for one in model.parameters() if one.dim() > 1)
    found["cache"] = sum(one.nbytes for one in runner.kv_caches)
    found["blocks"].append(len(runner.kv_caches[0][0]))
    llm.sleep(level=1)
    llm.wake_up()
    found["level 1"] = answers(llm)
    found["failure"] = failure(llm, runner)
    found["after failure"] = [awake - live_bytes(), core.scheduler.get_num_unfinished_requests()]
    found["after failure"].append(len(llm.llm_engine.output_processor.request_states))
    llm.wake_up(tags=["weights"])
    model.load_weights((name, one.clone()) for name, one in sent[0].items())
    llm.wake_up(tags=["kv_cache"])
    found["recovered"] = answers(llm)
    return found


if __name__ == "__main__":
    print("\n" + json.dumps(main(Path(sys.argv[1]))))
