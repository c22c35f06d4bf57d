"""verl's HF rollout generates n responses for each of the n copies of a prompt made by the trainer.

Called is HFRollout._generate_minibatch of verl/workers/rollout/hf_rollout.py@0.5.0, sampling, greedily
and for a validation. "given" are the rows of the batch, "asked" what `generate` was asked for per row, "rows" those of
each tensor of the result.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import torch
from witness_common import make_module, make_packages, show

PROMPTS, SAMPLES, PROMPT_LENGTH, RESPONSE_LENGTH = 2, 3, 4, 5


class Parameters:
    """Transformers' GenerationConfig as a namespace of values; one response by default."""

    num_return_sequences = 1

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Batch(dict):  # type: ignore[type-arg]
    """Stand-in for tensordict's TensorDict: every entry has `batch_size` rows."""

    def __init__(self, source: dict[str, Any], batch_size: int) -> None:
        for name, tensor in source.items():
            assert tensor.shape[0] == batch_size, f"{name} has {tensor.shape[0]} rows, not {batch_size}"
        super().__init__(source)


class DataProto:
    def __init__(self, batch: Any, meta_info: dict[str, Any] | None = None) -> None:
        self.batch, self.meta_info = batch, meta_info or {}


class Config(SimpleNamespace):
    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


class Model:
    """Generates like transformers: `num_return_sequences` rows for each input row."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def eval(self) -> None: ...
    def train(self) -> None: ...

    def generate(self, input_ids: Any, generation_config: Parameters, max_new_tokens: int, **_: Any) -> Any:
        times = generation_config.num_return_sequences
        self.asked.append(times)
        rows = input_ids.repeat_interleave(times, dim=0)
        response = torch.ones(rows.shape[0], max_new_tokens, dtype=rows.dtype)
        return SimpleNamespace(sequences=torch.cat((rows, response), dim=1))


def install() -> None:
    """Make the module's imports available."""
    make_packages("verl.workers", "verl.workers.rollout")
    make_module("tensordict", TensorDict=Batch)
    make_module("transformers", GenerationConfig=Parameters)
    make_module("verl", DataProto=DataProto, __path__=[])
    make_module("verl.utils", __path__=[])
    quiet = SimpleNamespace(empty_cache=lambda: None)
    make_module("verl.utils.device", get_device_name=lambda: "cpu", get_torch_device=lambda: quiet)
    # No response of the model holds an end of sequence, so all of it counts.
    make_module(
        "verl.utils.torch_functional",
        get_response_mask=lambda response_id, eos_token, dtype: torch.ones(response_id.shape, dtype=dtype),
    )
    # base.py of verl 0.8 and newer; the class is abstract there, so its function is called without an instance.
    make_module("verl.utils.config", omega_conf_to_dataclass=lambda config: config)
    make_module("verl.workers.config", HFModelConfig=Config, RolloutConfig=Config)


def generate(rollout: Any, mode: str) -> dict[str, Any]:
    # As the trainer does before it calls generate_sequences: every prompt stands there `rollout.n` times.
    rows = PROMPTS * SAMPLES
    ids = torch.tensor([[10 + row // SAMPLES] * PROMPT_LENGTH for row in range(rows)])
    places = torch.arange(PROMPT_LENGTH).repeat(rows, 1)
    config = Config(
        do_sample=True, temperature=1.0, response_length=RESPONSE_LENGTH, n=SAMPLES,
        val_kwargs=Config(top_k=-1, top_p=1.0, temperature=1.0),
    )  # fmt: skip
    prompts = DataProto(
        {"input_ids": ids, "attention_mask": torch.ones_like(ids), "position_ids": places},
        {"eos_token_id": 0, "pad_token_id": 0, "do_sample": mode != "greedy", "validate": mode == "validate"},
    )
    model = Model()
    made = rollout.HFRollout._generate_minibatch(SimpleNamespace(module=model, config=config), prompts)
    assert made.batch["responses"].shape[1] == RESPONSE_LENGTH
    return {"given": rows, "asked": model.asked, "rows": {len(tensor) for tensor in made.batch.values()}}


def main() -> dict[str, Any]:
    install()
    rollout = importlib.import_module("verl.workers.rollout.hf_rollout")
    found = {mode: generate(rollout, mode) for mode in ("sample", "greedy", "validate")}
    fault = any(one["rows"] != {one["given"]} for one in found.values())
    return {"fault": fault, **{mode: {**one, "rows": sorted(one["rows"])} for mode, one in found.items()}}


if __name__ == "__main__":
    show(main)
