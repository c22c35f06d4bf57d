"""The reference's weights in each of its passes: those of its first pass, which are the checkpoint's.

verl's reference is an actor without an optimizer (verl/workers/fsdp_workers.py:647 and megatron_workers.py@v0.5.0), and
its weights are in place within `compute_log_prob`, whatever is offloaded before and after.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

from npu_rl_standins.hooks import after_import

from .counts import compared, not_recomputed
from .difference import Difference, report

WEIGHTS, LOADED = "reference's weights", "reference's weights in the checkpoint"
_FSDP, _MEGATRON = "verl.workers.actor.dp_actor", "verl.workers.actor.megatron_actor"
# cann-recipes-train replaces the method of verl's class.
_CLASSES = {
    _FSDP: "DataParallelPPOActor",
    _MEGATRON: "MegatronPPOActor",
    "verl_patches.workers.actor.megatron_actor": "MegatronPPOActor",
}
_BIASES = ("e_score_correction_bias", "expert_bias")
_FIRST = "_npu_rl_first_weights"


def install() -> None:
    """Compare the weights of each reference of verl and cann-recipes-train before it computes log-probabilities."""
    for module, name in _CLASSES.items():
        after_import(module, functools.partial(_watch, name))


def _watch(name: str, module: Any) -> None:
    actor_class = getattr(module, name)
    upstream: Callable[..., Any] = actor_class.compute_log_prob
    if hasattr(upstream, _FIRST):
        return

    @functools.wraps(upstream)
    def compute_log_prob(actor: Any, *arguments: Any, **named: Any) -> Any:
        if actor.actor_optimizer is None:
            _compare(actor)
        return upstream(actor, *arguments, **named)

    setattr(compute_log_prob, _FIRST, True)
    actor_class.compute_log_prob = compute_log_prob


def _compare(reference: Any) -> None:
    """Compare with the reference's first pass; in that, with the checkpoint. That is a collective call."""
    import torch

    weights = dict(_weights(reference))
    first = vars(reference).setdefault(_FIRST, {})
    if not first:
        first.update({name: value.clone() for name, value in weights.items()})
        _compare_with_checkpoint(reference)
    for name, value in weights.items():
        if not torch.equal(value, first[name]):
            place = tuple((value != first[name]).nonzero()[0].tolist())
            values = float(value[place]), float(first[name][place])
            report(Difference(f"{WEIGHTS}, {name}", *values, mistake="updates change the reference"))
    compared(WEIGHTS)


def _weights(reference: Any) -> Iterator[tuple[str, Any]]:
    """Yield this rank's parameters, and the routers' biases, which may be buffers."""
    chunks = reference.actor_module
    for number, chunk in enumerate(chunks if isinstance(chunks, (list, tuple)) else [chunks]):
        biases = [(name, value) for name, value in chunk.named_buffers() if name.endswith(_BIASES)]
        for name, value in [*chunk.named_parameters(), *biases]:
            yield f"{number}.{name}", (value.to_local() if hasattr(value, "to_local") else value).detach()


def _compare_with_checkpoint(reference: Any) -> None:
    import torch
    from npu_rl_tensors.layouts.name_tables import hf_shapes
    from npu_rl_weight_sync.held import gather
    from npu_rl_weight_sync.sync_check import fsdp_sides, megatron_sides
    from safetensors.torch import load_file

    if hasattr(reference, "hf_config"):
        sides = megatron_sides(reference.actor_module, reference.hf_config, None)
    else:
        sides = fsdp_sides(reference.actor_module, reference.actor_module.config, None)
    whole = gather(sides.trained(set()), hf_shapes(sides.dims)).tensors
    saved = {
        name: value
        for file in sides.checkpoint.glob("*.safetensors")
        for name, value in load_file(file).items()
    }
    both = [name for name in whole if name in saved]
    # In its own type: verl loads the reference in bfloat16, routers' biases too.
    wrong = [name for name in both if not torch.equal(whole[name], saved[name].to(whole[name].dtype))]
    if 2 * len(wrong) > len(both) and not os.environ.get("NPU_RL_LOADS"):
        not_recomputed(LOADED, "the model has random weights of its own")
        return
    for name in wrong:
        values = float(whole[name].double().norm()), float(saved[name].double().norm())
        report(Difference(f"{LOADED}, norm of {name}", *values, mistake="the reference did not load it"))
    compared(LOADED)
