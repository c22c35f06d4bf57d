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

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import yaml
from witness_common import make_module, make_packages, show

STEPS, REPLICAS, PROMPTS, SAMPLES, TOKENS, VOCABULARY = 2, 2, 3, 4, 16, 1000
CONFIGURATION = Path("configs/grpo_qwen25_7b_A3.yaml")


ADAPTER = "mindspeed_rl.models.rollout.vllm_adapter"
# Without their __init__, which would import the whole trainer.
make_packages(
    "mindspeed_rl", "mindspeed_rl.config_cls", "mindspeed_rl.models", "mindspeed_rl.models.base",
    "mindspeed_rl.models.rollout", ADAPTER,
)  # fmt: skip
ANY = mock.Mock()
make_module("mindspeed_rl.utils", get_tokenizer=ANY, Loggers=ANY)
make_module("mindspeed_rl.utils.utils", mstx_timer_decorator=lambda function: function)
make_module("mindspeed_rl.utils.loggers", Loggers=ANY)
make_module(f"{ADAPTER}.vllm_parallel_state", initialize_parallel_state=ANY)
make_module(
    f"{ADAPTER}.megatron_weight_loaders", load_megatron_weights=ANY, update_megatron_weight_loader=ANY,
    InferParallelConfig=ANY,
)  # fmt: skip
if "ray" not in sys.modules:
    make_module("ray")

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
    show(main)
