"""A rollout with weights of its own, filled by the trainer's own converter before every step.

It stands in for vLLM, and it makes the way of the weights visible: verl's HFRollout generates with the actor's own
parameters, so nothing could get lost. Here a second Hugging Face model generates; each step its parameters are set
from the actor's, as verl's sharding managers set vLLM's: on FSDP through `verl.utils.model.convert_weight_keys`
(verl/workers/sharding_manager/fsdp_vllm.py:137 at 0.5.0), on Megatron through `per_tensor_generator` and the
architecture's weight converter (megatron_vllm.py:149 at 55e3c5b). A name that the model doesn't have, one that stays
unset or another shape ends the run. The rollout's log probabilities are returned, and verl compares them with the
actor's (`training/rollout_probs_diff_mean`).

Real: verl's trainer, worker, HFRollout and converter. Not proven: vLLM itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from .fault import faulty
from .hooks import after_import
from .used import count

Named = Iterable[tuple[str, Any]]
_BY_VOCABULARY = ("embed_tokens.weight", "lm_head.weight")


def install() -> None:
    after_import("verl.workers.fsdp_workers", _change_fsdp)
    after_import("verl.workers.megatron_workers", _change_megatron)


def _change_fsdp(module: ModuleType) -> None:
    module.ActorRolloutRefWorker._build_rollout = build_on_fsdp  # type: ignore[attr-defined]


def _change_megatron(module: ModuleType) -> None:
    module.ActorRolloutRefWorker._build_rollout = build_on_megatron  # type: ignore[attr-defined]


def build_on_fsdp(worker: Any, trust_remote_code: bool = False) -> tuple[Any, Any]:
    """In place of ActorRolloutRefWorker._build_rollout of the FSDP workers: (rollout, sharding manager)."""
    return _build(
        worker.actor_model_config,
        worker.config.rollout,
        weights=lambda: actor_weights(worker.actor_module_fsdp),
        train=worker.actor_module_fsdp.train,
        trust=trust_remote_code,
    )


def build_on_megatron(worker: Any, trust_remote_code: bool = False) -> tuple[Any, Any]:
    """The same of the Megatron workers. Every rank generates for itself, from the weights of all stages."""
    from verl.utils.config import omega_conf_to_dataclass

    def train() -> None:
        for part in worker.actor.actor_module:
            part.train()

    rollout, manager = _build(
        worker.hf_config,
        omega_conf_to_dataclass(worker.config.rollout),
        weights=lambda: megatron_weights(worker),
        train=train,
        trust=trust_remote_code,
    )
    worker._register_dispatch_collect_info("rollout", dp_rank=worker.rank, is_collect=True)
    return rollout, manager


def _build(
    model_config: Any, config: Any, *, weights: Callable[[], Named], train: Callable[[], Any], trust: bool
) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM
    from verl.workers.rollout import HFRollout
    from verl.workers.sharding_manager.base import BaseShardingManager

    model = AutoModelForCausalLM.from_config(
        model_config, torch_dtype=torch.bfloat16, trust_remote_code=trust, attn_implementation="eager"
    ).eval()
    generating = _Generating(model, float(config.temperature))

    class Rollout(HFRollout):  # type: ignore[misc]
        """verl's own, with the log probabilities of what it sampled."""

        def _generate_minibatch(self, prompts: Any) -> Any:
            output = super()._generate_minibatch(prompts)
            width = output.batch["responses"].shape[1]
            output.batch["rollout_log_probs"] = generating.log_probs(width)
            return output

    class Manager(BaseShardingManager):  # type: ignore[misc]
        """Fills the rollout's weights on the way in."""

        def __enter__(self) -> None:
            started = time.perf_counter()
            fill(model, weights())
            self.timing = {"reshard": time.perf_counter() - started}

        def __exit__(self, *_: object) -> None:
            train()

    return Rollout(module=generating, config=config), Manager()


def megatron_weights(worker: Any) -> Iterator[tuple[str, Any]]:
    """The actor's full weights by the names of its Hugging Face model, gathered over all of Megatron's groups."""
    from verl.models.mcore import get_mcore_weight_converter
    from verl.utils.megatron_utils import (
        load_megatron_model_to_gpu,
        offload_megatron_model_to_cpu,
        per_tensor_generator,
    )

    names = {"qkv_layer_name": "self_attention.linear_qkv.", "gate_proj_layer_name": "linear_fc1."}
    if worker._is_offload_param:
        load_megatron_model_to_gpu(worker.actor.actor_module, load_grad=False)
    rows = worker.hf_config.vocab_size
    converter = get_mcore_weight_converter(worker.actor_model_config, worker.dtype)
    for name, tensor in per_tensor_generator(
        worker.actor.actor_module, worker.actor_model_config, converter, worker.tf_config, names
    ):
        # Megatron pads the vocabulary; vLLM's own loader leaves the padding out, too.
        tensor = tensor[:rows] if name.endswith(_BY_VOCABULARY) else tensor
        yield name, faulty(name, tensor)
    if worker._is_offload_param:
        offload_megatron_model_to_cpu(worker.actor.actor_module)


def actor_weights(module: Any) -> Iterator[tuple[str, Any]]:
    """The actor's full weights by the names of its Hugging Face model, through verl's own converter."""
    from torch.distributed.fsdp import FullStateDictConfig, StateDictType
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from verl.utils.model import convert_weight_keys

    inner = getattr(module, "_fsdp_wrapped_module", module)
    if isinstance(module, FSDP):
        with FSDP.state_dict_type(module, StateDictType.FULL_STATE_DICT, FullStateDictConfig()):
            state = module.state_dict()
    else:
        state = module.state_dict()
    for name, tensor in convert_weight_keys(state, inner).items():
        tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        yield name, faulty(name, tensor)


def fill(model: Any, weights: Named) -> None:
    """Set every parameter and buffer of `model` from (name, tensor). Raises RuntimeError, naming what is wrong."""
    import torch

    wanted = dict(model.named_parameters())
    buffers = dict(model.named_buffers())
    got: set[str] = set()
    with torch.no_grad():
        for name, tensor in weights:
            target = wanted.get(name, buffers.get(name))
            if target is None:
                raise RuntimeError(f"the converter gave {name}, which the rollout's model does not have")
            if target.shape != tensor.shape:
                raise RuntimeError(
                    f"the converter gave {name} as {tuple(tensor.shape)}, the rollout has {tuple(target.shape)}"
                )
            target.copy_(tensor)
            got.add(name)
    missing = sorted(set(wanted) - got)
    if missing:
        raise RuntimeError(
            f"the converter left {len(missing)} weights of the rollout unset: {', '.join(missing[:8])}"
        )
    count("rollout.weights_filled")


class _Generating:
    """A model whose `generate` also keeps the log probability of every sampled token."""

    def __init__(self, model: Any, temperature: float) -> None:
        self._model = model
        self._temperature = temperature
        self._kept: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def generate(self, **named: Any) -> Any:
        import torch

        output = self._model.generate(**{**named, "output_logits": True})
        count("rollout.generate")
        logits = torch.stack(output.logits, dim=1).float()  # (rows, new tokens, vocabulary)
        tokens = output.sequences[:, -logits.shape[1] :]
        scaled = torch.log_softmax(logits / (self._temperature or 1.0), dim=-1)
        self._kept = scaled.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        output.logits = None
        return output

    def log_probs(self, width: int) -> Any:
        """(rows, width) of the last `generate`, padded with 0 behind the last token generated."""
        import torch

        kept = self._kept
        return torch.nn.functional.pad(kept, (0, width - kept.shape[1]))
