"""Draw samples in two steps and on two replicas of MindSpeed-RL's rollout, and count those that are equal.

`sampling_config.seed` of a configuration, 1234 in the published ones, becomes the seed of the only SamplingParams that
an engine has (mindspeed_rl/models/rollout/vllm_engine.py:121@62e9928). vLLM gives each request a generator with it,
plus i for the i-th sample of a prompt (vllm/sequence.py:1420, vllm/model_executor/sampling_metadata.py:276@v0.7.3). So
the i-th sample of every prompt draws the same random numbers, in every step and on every replica.

Real: the configuration of the tree, VLLMInferEngine's constructor up to the engine, its generate_sequences, vLLM's
split of a request into samples, its SamplingMetadata with the generators, and its Sampler. The model, scheduler and KV
cache are left out: each token has the same logits, so that samples differ by the random numbers alone.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
import yaml

STEPS, REPLICAS, PROMPTS, SAMPLES, TOKENS, VOCABULARY = 2, 2, 3, 4, 16, 1000
CONFIGURATION = Path("configs/grpo_qwen25_7b_A3.yaml")


def packages(*names: str) -> None:
    """Create packages without running their __init__, which would import the whole trainer."""
    for name in names:
        package: Any = ModuleType(name)
        package.__path__ = [name.replace(".", "/")]
        sys.modules[name] = package


def stand_in(name: str, *functions: str) -> None:
    module = ModuleType(name)
    vars(module).update(dict.fromkeys(functions, mock.Mock()))
    sys.modules[name] = module


packages(
    "mindspeed_rl",
    *(f"mindspeed_rl.{name}" for name in ("config_cls", "models", "models.base", "models.rollout")),
)
adapter = "mindspeed_rl.models.rollout.vllm_adapter"
packages(adapter)
stand_in("mindspeed_rl.utils", "get_tokenizer", "Loggers")
stand_in("mindspeed_rl.utils.utils")
sys.modules["mindspeed_rl.utils.utils"].mstx_timer_decorator = lambda function: function  # type: ignore[attr-defined]
stand_in("mindspeed_rl.utils.loggers", "Loggers")
stand_in(f"{adapter}.vllm_parallel_state", "initialize_parallel_state")
stand_in(
    f"{adapter}.megatron_weight_loaders",
    "load_megatron_weights",
    "update_megatron_weight_loader",
    "InferParallelConfig",
)
if "ray" not in sys.modules:
    stand_in("ray")

from mindspeed_rl.models.rollout import vllm_engine  # noqa: E402
from vllm.model_executor.layers.sampler import Sampler  # noqa: E402
from vllm.model_executor.sampling_metadata import SamplingMetadata  # noqa: E402
from vllm.sequence import (  # noqa: E402
    ParallelSampleSequenceGroup,
    SequenceData,
    SequenceGroupMetadata,
)

STAND_INS = ("npu",)
ENVIRONMENT = {"VLLM_PLUGINS": "none"}


class Engine:
    """vLLM's engine without a model: it holds the requests that a prompt is split into."""

    def __init__(self) -> None:
        self.requests: dict[str, Any] = {}
        self.seq_id_to_seq_group: dict[str, Any] = {}

    def _add_processed_request(self, name: str, params: Any, **_: Any) -> Any:
        self.requests[name] = params
        return mock.MagicMock()


class LLM:
    """Stand-in for the parts of vLLM's LLM class that a rollout uses."""

    def __init__(self, **_: Any) -> None:
        self.llm_engine = mock.MagicMock()

    def generate(self, sampling_params: Any, prompt_token_ids: Any, **_: Any) -> Any:
        engine = Engine()
        for number in range(len(prompt_token_ids)):
            ParallelSampleSequenceGroup.add_request(str(number), engine, sampling_params)
        tokens, generators = {name: [] for name in engine.requests}, {}  # type: ignore[var-annotated]
        sampler, logits = Sampler(), -torch.arange(VOCABULARY).repeat(len(tokens), 1) / 20
        for step in range(TOKENS):
            groups = [
                SequenceGroupMetadata(
                    name, step == 0, {number: SequenceData.from_seqs([1], tokens[name])}, params, {number: []}
                )
                for number, (name, params) in enumerate(engine.requests.items())
            ]
            lengths = [1] * len(groups)
            metadata = SamplingMetadata.prepare(groups, lengths, lengths, "cpu", False, generators)
            for name, output in zip(tokens, sampler(logits.clone(), metadata).outputs, strict=True):
                tokens[name].append(output.samples[0].output_token)
        outputs = [SimpleNamespace(token_ids=found, logprobs=None) for found in tokens.values()]
        return [
            SimpleNamespace(outputs=outputs[first : first + SAMPLES])
            for first in range(0, len(outputs), SAMPLES)
        ]


def rollout() -> Any:
    """Return one replica's engine, with the sampling parameters that ActorHybridWorker passes."""
    configured = yaml.safe_load(CONFIGURATION.read_text(encoding="utf-8"))["generate_config"][
        "sampling_config"
    ]
    sampling = {"num_completions": SAMPLES, "best_of": SAMPLES, **configured}
    sizes = dict.fromkeys(
        [
            f"{kind}_{part}_parallel_size"
            for kind in ("train", "infer")
            for part in ("tensor", "pipeline", "expert")
        ],
        1,
    )
    with mock.patch.object(vllm_engine, "LLM", LLM), mock.patch.object(vllm_engine, "AutoConfig"):
        one = vllm_engine.VLLMInferEngine("", megatron_config=None, sampling_config=sampling, **sizes)
    one.pad_token_id = -1
    return one


def main() -> dict[str, Any]:
    replicas = [rollout() for _ in range(REPLICAS)]
    prompts = [[number] for number in range(PROMPTS)]
    drawn = [
        replica.generate_sequences(prompts)[0].view(PROMPTS, SAMPLES, TOKENS).tolist()
        for _ in range(STEPS)
        for replica in replicas
    ]
    groups = [group for generation in drawn for group in generation]
    different = {str(group) for group in groups}
    return {
        "fault": len(different) < len(groups), "seed": replicas[0].sampling_params.seed, "groups": len(groups),
        "different groups": len(different), "different samples of a group": len({str(one) for one in groups[0]}),
        "samples of a group": SAMPLES,
    }  # fmt: skip


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        result = main()
    print("\n" + json.dumps(result))
