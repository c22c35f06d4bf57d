"""verl's HF rollout generates n responses for each of the n copies of a prompt made by the trainer.

Called is HFRollout._generate_minibatch out of its own file (verl/workers/rollout/hf_rollout.py@0.5.0). "given" are the
rows of the batch, "rows" those of each tensor of the result, "asked" what `generate` was asked for per row.

Arguments, if any: FOLDER MODE TENSORS. FOLDER holds `base.py` and `hf_rollout.py`. MODE is `sample`, `greedy` or
`validate`. TENSORS is `torch`, or `stand-in`: tables that know rows, columns and integers, and nothing of arithmetic on
floats. A stand-in never swallows a call: what is missing raises.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROMPTS, SAMPLES, PROMPT_LENGTH, RESPONSE_LENGTH = 2, 3, 4, 5


class Tensor:
    """A table of integers: rows of equal length, or one row."""

    device = "cpu"
    dtype = "int64"

    def __init__(self, rows: list[list[int]]) -> None:
        self.rows = [list(row) for row in rows]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), len(self.rows[0])

    def size(self, dim: int) -> int:
        return self.shape[dim]

    def __getitem__(self, at: tuple[slice, slice]) -> Tensor:
        assert at[0] == slice(None), "only columns are cut"
        return Tensor([row[at[1]] for row in self.rows])

    def __rmul__(self, factor: int) -> Tensor:
        return Tensor([[factor * x for x in row] for row in self.rows])

    def __add__(self, other: Tensor) -> Tensor:
        assert len(self.rows) == len(other.rows), f"{self.shape} and {other.shape} do not go together"
        assert 1 in (self.shape[1], other.shape[1])
        width = max(self.shape[1], other.shape[1])
        return Tensor(
            [
                [a[i % len(a)] + b[i % len(b)] for i in range(width)]
                for a, b in zip(self.rows, other.rows, strict=True)
            ]
        )

    def unsqueeze(self, dim: int) -> Tensor:
        assert dim == 0 and len(self.rows) == 1
        return self

    def repeat(self, rows: int, columns: int) -> Tensor:
        return Tensor([row * columns for _ in range(rows) for row in self.rows])

    def repeat_interleave(self, times: int, dim: int) -> Tensor:
        assert dim == 0
        return Tensor([row for row in self.rows for _ in range(times)])


def _cat(tensors: tuple[Tensor, ...] | list[Tensor], dim: int) -> Tensor:
    assert dim in (1, -1)
    heights = {len(t.rows) for t in tensors}
    assert len(heights) == 1, f"Sizes of tensors must match: {heights}"
    return Tensor([list(itertools.chain(*rows)) for rows in zip(*(t.rows for t in tensors), strict=True)])


def _ones(size: tuple[int, int], device: object = None, dtype: object = None) -> Tensor:
    return Tensor([[1] * size[1] for _ in range(size[0])])


def _module(name: str, **members: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(members)
    module.__path__ = []
    sys.modules[name] = module
    parent, _, own = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], own, module)
    return module


@contextlib.contextmanager
def _autocast(device_type: str, dtype: object) -> Iterator[None]:
    yield


class _Parameters:
    """Transformers' GenerationConfig as a namespace of values; one response by default."""

    num_return_sequences = 1

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class _TensorDict(dict):  # type: ignore[type-arg]
    """Stand-in for tensordict's TensorDict: every entry has `batch_size` rows."""

    def __init__(self, source: dict[str, Any], batch_size: int) -> None:
        for name, tensor in source.items():
            assert tensor.shape[0] == batch_size, f"{name} has {tensor.shape[0]} rows, not {batch_size}"
        super().__init__(source)


class _DataProto:
    def __init__(self, batch: Any, meta_info: dict[str, Any] | None = None) -> None:
        self.batch = batch
        self.meta_info = meta_info or {}


def install(tensors: str) -> Any:
    """Make the module's imports available; torch may be real or a stand-in."""
    if tensors == "stand-in":
        _module(
            "torch", no_grad=lambda: lambda function: function, autocast=_autocast, bfloat16="bfloat16",
            cat=_cat, ones=_ones, arange=lambda start, end, device: Tensor([list(range(start, end))]),
            tensor=Tensor,
        )  # fmt: skip
        _module("torch.nn", Module=object)
        _module("torch.distributed")
        _module("torch.distributed.fsdp", FullyShardedDataParallel=type("FSDP", (), {}))
    import torch

    _module("tensordict", TensorDict=_TensorDict)
    _module("transformers", GenerationConfig=_Parameters)
    _module("verl", DataProto=_DataProto)
    _module("verl.utils")
    quiet = types.SimpleNamespace(empty_cache=lambda: None)
    _module("verl.utils.device", get_device_name=lambda: "cpu", get_torch_device=lambda: quiet)
    # No answer of the model below holds an end of sequence, so the whole response counts.
    _module(
        "verl.utils.torch_functional",
        get_response_mask=lambda response_id, eos_token, dtype: torch.ones(
            size=(response_id.shape[0], response_id.shape[1]), dtype=dtype
        ),
    )
    _module("verl.workers")
    _module("verl.workers.rollout")
    # base.py of verl 0.8 and newer; the class is abstract there, so its function is called without an instance.
    _module("verl.utils.config", omega_conf_to_dataclass=lambda config: config)
    _module("verl.workers.config", HFModelConfig=Config, RolloutConfig=Config)
    return torch


def load(folder: Path, name: str) -> types.ModuleType:
    """Import upstream's own file under its module name."""
    spec = importlib.util.spec_from_file_location(f"verl.workers.rollout.{name}", folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Model:
    """Generates like transformers: `num_return_sequences` rows for each input row."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.asked: list[int] = []

    def eval(self) -> None:
        pass

    def train(self) -> None:
        pass

    def generate(self, input_ids: Any, generation_config: _Parameters, max_new_tokens: int, **_: Any) -> Any:
        times = generation_config.num_return_sequences
        self.asked.append(times)
        rows = input_ids.repeat_interleave(times, dim=0)
        answer = self.torch.ones(size=(rows.shape[0], max_new_tokens), device=rows.device, dtype=rows.dtype)
        return types.SimpleNamespace(sequences=self.torch.cat((rows, answer), dim=1))


class Config(types.SimpleNamespace):
    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


def main(folder: Path, mode: str, tensors: str) -> dict[str, Any]:
    torch = install(tensors)
    load(folder, "base")
    rollout = load(folder, "hf_rollout")
    # As the trainer does before it calls generate_sequences: every prompt stands there `rollout.n` times.
    rows = PROMPTS * SAMPLES
    ids = torch.tensor([[10 + row // SAMPLES] * PROMPT_LENGTH for row in range(rows)])
    ones = torch.tensor([[1] * PROMPT_LENGTH for _ in range(rows)])
    places = torch.tensor([list(range(PROMPT_LENGTH)) for _ in range(rows)])
    config = Config(
        do_sample=True, temperature=1.0, response_length=RESPONSE_LENGTH, n=SAMPLES,
        val_kwargs=Config(top_k=-1, top_p=1.0, temperature=1.0),
    )  # fmt: skip
    prompts = _DataProto(
        {"input_ids": ids, "attention_mask": ones, "position_ids": places},
        {
            "eos_token_id": 0,
            "pad_token_id": 0,
            "do_sample": mode != "greedy",
            "validate": mode == "validate",
        },
    )
    model = Model(torch)
    holder = types.SimpleNamespace(module=model, config=config)
    made = rollout.HFRollout._generate_minibatch(holder, prompts)
    return {
        "fault": model.asked != [1] if mode == "sample" else False,
        "torch": getattr(torch, "__version__", "stand-in"),
        "given": rows,
        "asked": model.asked,
        "rows": {name: tensor.shape[0] for name, tensor in made.batch.items()},
        "columns": {name: tensor.shape[1] for name, tensor in made.batch.items()},
    }


if __name__ == "__main__":
    folder, *others = sys.argv[1:] or ["verl/workers/rollout", "sample", "torch"]
    print(json.dumps(main(Path(folder), *others)))
