"""A rollout with its own copy of the weights, filled by the trainer's own converter before every step.

It stands in for vLLM, and it rehearses the weight sync: verl's HFRollout generates with the actor's own parameters, so
nothing could get lost. Here a second Hugging Face model generates. In each step its parameters are set from the
actor's, as verl's sharding managers set vLLM's: on FSDP through `verl.utils.model.convert_weight_keys`
(verl/workers/sharding_manager/fsdp_vllm.py:137 at 0.5.0), on Megatron through `per_tensor_generator` and the
architecture's weight converter (megatron_vllm.py:149 at 55e3c5b). An unknown name, a weight that is not set or another
shape ends the run. The rollout's log probabilities are returned, and verl compares them with the actor's
(`training/rollout_probs_diff_mean`).

Real: verl's trainer, worker, HFRollout and converter. Not proven: vLLM itself.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any

from .fault import with_fault
from .hooks import after_import
from .seed import seed_step
from .used import count

NamedTensors = Iterable[tuple[str, Any]]
_VOCABULARY_WEIGHTS = ("embed_tokens.weight", "lm_head.weight")


def install() -> None:
    """Replace the rollout of verl's FSDP and Megatron workers."""
    after_import("verl.workers.fsdp_workers", _install_on_fsdp)
    after_import("verl.workers.megatron_workers", _install_on_megatron)


def _install_on_fsdp(module: ModuleType) -> None:
    module.ActorRolloutRefWorker._build_rollout = build_on_fsdp  # type: ignore[attr-defined]


def _install_on_megatron(module: ModuleType) -> None:
    module.ActorRolloutRefWorker._build_rollout = build_on_megatron  # type: ignore[attr-defined]


def build_on_fsdp(worker: Any, trust_remote_code: bool = False) -> tuple[Any, Any]:
    """Return rollout and sharding manager, in place of the FSDP workers' ActorRolloutRefWorker._build_rollout."""
    return _build(
        worker.actor_model_config,
        worker.config.rollout,
        weights=lambda: actor_weights(worker.actor_module_fsdp),
        train=worker.actor_module_fsdp.train,
        ready=nullcontext,
        trust=trust_remote_code,
    )


def build_on_megatron(worker: Any, trust_remote_code: bool = False) -> tuple[Any, Any]:
    """Return rollout and sharding manager for the Megatron workers. Each rank generates with all stages' weights."""
    from verl.utils.config import omega_conf_to_dataclass

    def train() -> None:
        for part in worker.actor.actor_module:
            part.train()

    config = worker.config.rollout
    rollout, manager = _build(
        worker.hf_config,
        omega_conf_to_dataclass(config) if "_target_" in config else config,  # no dataclass at verl 796871d
        weights=lambda: megatron_weights(worker),
        train=train,
        ready=lambda: _loaded_parameters(worker),
        trust=trust_remote_code,
    )
    if hasattr(worker, "_register_dispatch_collect_info"):  # not at verl 796871d
        worker._register_dispatch_collect_info("rollout", dp_rank=worker.rank, is_collect=True)
    return rollout, manager


def _build(
    model_config: Any,
    config: Any,
    *,
    weights: Callable[[], NamedTensors],
    train: Callable[[], Any],
    ready: Callable[[], AbstractContextManager[Any]],
    trust: bool,
) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM
    from verl.workers.rollout import HFRollout
    from verl.workers.sharding_manager.base import BaseShardingManager

    model = AutoModelForCausalLM.from_config(
        model_config, torch_dtype=torch.bfloat16, trust_remote_code=trust, attn_implementation="eager"
    ).eval()
    keep_biases_precise(model)
    model.load_weights = functools.partial(load_weights, model)  # under vLLM's name
    generating = _RecordingModel(model, float(config.temperature))

    class Rollout(HFRollout):  # type: ignore[misc]
        """verl's own rollout, with the log probabilities of the sampled tokens."""

        def generate_sequences(self, prompts: Any) -> Any:
            seed_step(prompts)
            return super().generate_sequences(prompts)

        def _generate_minibatch(self, prompts: Any) -> Any:
            output = super()._generate_minibatch(prompts)
            width = output.batch["responses"].shape[1]
            output.batch["rollout_log_probs"] = generating.log_probs(width)
            return output

    class Manager(BaseShardingManager):  # type: ignore[misc]
        """A sharding manager that sets the rollout's weights on entry."""

        rollout_model = model

        def __enter__(self) -> None:
            started = time.perf_counter()
            with ready():
                model.load_weights(with_fault(weights()))
            self.timing = {"reshard": time.perf_counter() - started}

        def __exit__(self, *_: object) -> None:
            train()

    return Rollout(module=generating, config=config), Manager()


def keep_biases_precise(model: Any) -> None:
    """Convert the routers' biases to float32, as in verl's actor, since small differences matter."""
    for module in model.modules():
        bias = getattr(module, "e_score_correction_bias", None)
        if bias is not None:
            bias.data = bias.data.float()


@contextmanager
def _loaded_parameters(worker: Any) -> Iterator[None]:
    """Load the parameters that the recipe offloads."""
    from verl.utils.megatron_utils import load_megatron_model_to_gpu, offload_megatron_model_to_cpu

    if worker._is_offload_param:
        load_megatron_model_to_gpu(worker.actor.actor_module, load_grad=False)
    yield
    if worker._is_offload_param:
        offload_megatron_model_to_cpu(worker.actor.actor_module)


def megatron_weights(worker: Any) -> Iterator[tuple[str, Any]]:
    """Yield the actor's full weights by their Hugging Face names, gathered over all of Megatron's groups."""
    from verl.models.mcore import get_mcore_weight_converter
    from verl.utils.megatron_utils import per_tensor_generator

    names = {"qkv_layer_name": "self_attention.linear_qkv.", "gate_proj_layer_name": "linear_fc1."}
    rows = worker.hf_config.vocab_size
    converter = get_mcore_weight_converter(worker.actor_model_config, worker.dtype)
    for name, tensor in per_tensor_generator(
        worker.actor.actor_module, worker.actor_model_config, converter, worker.tf_config, names
    ):
        # Megatron pads the vocabulary; vLLM's own loader drops the padding, too.
        tensor = tensor[:rows] if name.endswith(_VOCABULARY_WEIGHTS) else tensor
        yield name, tensor


def actor_weights(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the actor's full weights by their Hugging Face names, through verl's own converter."""
    from verl.utils.model import convert_weight_keys

    yield from convert_weight_keys(
        full_state(module), getattr(module, "_fsdp_wrapped_module", module)
    ).items()


def full_state(module: Any) -> dict[str, Any]:
    """Return the full tensors of a trained model, which FSDP may have wrapped."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    return dict(get_model_state_dict(module, options=StateDictOptions(full_state_dict=True)))


def load_weights(model: Any, weights: NamedTensors) -> None:
    """Set every parameter and buffer of `model` from (name, tensor). Raises RuntimeError for what does not match."""
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


class _RecordingModel:
    """A model whose `generate` also stores the log probability of every sampled token."""

    def __init__(self, model: Any, temperature: float) -> None:
        self._model = model
        self._temperature = temperature
        self._log_probs: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def generate(self, **named: Any) -> Any:
        """Generate with the model, and store the log probabilities."""
        import torch

        output = self._model.generate(**{**named, "output_logits": True})
        count("rollout.generate")
        logits = torch.stack(output.logits, dim=1).float()  # (rows, new tokens, vocabulary)
        tokens = output.sequences[:, -logits.shape[1] :]
        scaled = torch.log_softmax(logits / (self._temperature or 1.0), dim=-1)
        self._log_probs = scaled.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        output.logits = None
        return output

    def log_probs(self, width: int) -> Any:
        """Return the log probabilities of the last `generate` as (rows, width), padded with 0 after the last token."""
        import torch

        return torch.nn.functional.pad(self._log_probs, (0, width - self._log_probs.shape[1]))
