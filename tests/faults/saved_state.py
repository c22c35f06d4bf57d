"""A tiny model and optimizer for a tree's own checkpoint manager, without verl's workers."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import transformers
from npu_rl_rehearsal import cpu_cuda

_CONFIG = transformers.LlamaConfig(
    vocab_size=32, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
)


def imported(verl: Path, strategy: str) -> None:
    """Import what the ranks need, without verl's __init__, which needs more."""
    package: Any = types.ModuleType("verl")
    package.__path__ = [str(verl)]
    sys.modules["verl"] = package
    import packaging.version

    resources: Any = types.ModuleType("pkg_resources")
    resources.packaging = packaging  # all that Megatron-core 0.8.0 takes of it
    kernel: Any = types.ModuleType("verl.utils.kernel.linear_cross_entropy")
    kernel.linear_cross_entropy = None  # it needs triton
    sys.modules |= {"pkg_resources": resources, kernel.__name__: kernel}
    if strategy == "megatron":
        cpu_cuda.install()
    importlib.import_module(f"verl.utils.checkpoint.{strategy}_checkpoint_manager")
    if strategy == "fsdp":  # its first model imports for seconds, which each fork would do
        transformers.LlamaForCausalLM(_CONFIG)


class State:
    """A tiny model and optimizer whose values are those of a step, and the tree's manager for them."""

    def __init__(self, strategy: str, old: bool, run: Path) -> None:
        self.strategy, self.old = strategy, old
        build = self._fsdp if strategy == "fsdp" else self._megatron
        self.model, self.optimizer, self.manager = build(_CONFIG, run)

    def train(self, step: int) -> None:
        """Give each value of model and optimizer one that only this step has."""
        with torch.no_grad():
            for value in self._values():
                value.fill_(float(step))
        if self.old and self.strategy == "megatron":
            self.optimizer.group["step"] = step

    def compare(self, step: int) -> None:
        for value in self._values():
            assert bool((value == step).all()), (step, value.flatten()[:3])
        if self.old and self.strategy == "megatron":  # by the patch optimizer-resume
            assert self.optimizer.group["step"] == step

    def _values(self) -> list[torch.Tensor]:
        if self.strategy == "megatron":
            return [self.model.weight, self.optimizer.moment]
        states = [state["exp_avg"] for state in self.optimizer.state.values()]
        return [value.data for value in self.model.parameters()] + states

    def _fsdp(self, config: Any, _run: Path) -> tuple[Any, Any, Any]:
        from torch.distributed.fsdp import FullyShardedDataParallel
        from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

        module = transformers.LlamaForCausalLM(config)
        model = FullyShardedDataParallel(module, device_id=torch.device("cpu"), use_orig_params=False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)
        for value in model.parameters():
            value.grad = torch.ones_like(value)
        optimizer.step()
        optimizer.zero_grad()
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        processing = transformers.GenerationConfig()  # something with save_pretrained
        manager = FSDPCheckpointManager(model, optimizer, schedule, processing_class=processing)
        return model, optimizer, manager

    def _megatron(self, config: Any, run: Path) -> tuple[Any, Any, Any]:
        manager: Any = importlib.import_module("verl.utils.checkpoint.megatron_checkpoint_manager")
        manager.get_weight_saver = lambda _arch: None  # for the content hf_model alone
        model, optimizer = _Model(), _Optimizer()
        given: dict[str, Any] = {
            "config": SimpleNamespace(model=SimpleNamespace(path=str(run))),
            "model_config": None,
            "role": "actor",
            "model": [model],
            "arch": "DeepseekV3ForCausalLM",
            "hf_config": config,
            "param_dtype": torch.float32,
            "share_embeddings_and_output_weights": False,
            "optimizer": optimizer,
            "use_distributed_optimizer": True,
        }
        if self.old:
            given |= {"tokenizer": transformers.GenerationConfig()}
        else:
            from megatron.core.transformer import TransformerConfig
            from omegaconf import OmegaConf

            with_newer_torch()
            contents = {"async_save": False}
            given |= {
                "checkpoint_config": OmegaConf.create(contents),
                "transformer_config": TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=2),
                "processing_class": transformers.GenerationConfig(),
                "optimizer_scheduler": None,
            }
        return model, optimizer, manager.MegatronCheckpointManager(**given)


class _Model(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """Weights of one rank."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(512))

    def sharded_state_dict(self) -> dict[str, Any]:
        return {"weight": _sharded("weight", self.weight.data)}

    def load_state_dict(self, state: Any, *_: Any, **__: Any) -> None:
        with torch.no_grad():
            self.weight.copy_(state["weight"])


class _Optimizer:
    """An optimizer with one moment, as the managers know Megatron-core's distributed one."""

    def __init__(self) -> None:
        self.moment = torch.zeros(512)
        value = torch.zeros(1)
        self.group = {"params": [value], "step": 0}
        self.optimizer = SimpleNamespace(param_groups=[self.group], state={value: {"exp_avg": self.moment}})

    def init_state_fn(self, _optimizer: Any) -> None:
        pass

    def sharded_state_dict(self, _model: Any) -> dict[str, Any]:
        return {"moment": _sharded("optimizer.moment", self.moment)}

    def load_state_dict(self, state: Any) -> None:
        self.moment.copy_(state["moment"])

    def save_parameter_state(self, path: str) -> None:
        every: list[Any] = [None, None]
        dist.all_gather_object(every, self.moment)
        if dist.get_rank() == 0:  # DistributedOptimizer.save_parameter_state: the first data-parallel rank
            torch.save(every, path)

    def load_parameter_state(self, path: str) -> None:
        every: list[Any] = [torch.load(path) if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(every, 0)
        self.moment.copy_(every[0][dist.get_rank()])


def _sharded(key: str, value: torch.Tensor) -> Any:
    from megatron.core.dist_checkpointing import ShardedTensor

    return ShardedTensor.from_rank_offsets(key, value, (0, dist.get_rank(), 2))


def with_newer_torch() -> None:
    """Megatron-core 0.12.1 calls a function of torch's that has one argument more since torch 2.7."""
    import functools

    writer: Any = importlib.import_module("megatron.core.dist_checkpointing.strategies.filesystem_async")
    formats: Any = importlib.import_module("torch.distributed.checkpoint.filesystem")
    if hasattr(formats, "SerializationFormat") and not isinstance(writer._write_item, functools.partial):
        usual = formats.SerializationFormat.TORCH_SAVE
        writer._write_item = functools.partial(writer._write_item, serialization_format=usual)
