"""Hooks of the actors: what a loss is computed from, the gradients that backward delivers, and log-probabilities.

The tree's own update runs. Wrapped are the functions that verl's actors and that of cann-recipes-train take from
verl.trainer.ppo.core_algos (compute_policy_loss, get_policy_loss_fn, agg_loss, kl_penalty), under the actor's names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from npu_rl_standins.hooks import after_import

from .counts import hook_fired, hook_used, not_recomputed

FSDP = "verl.workers.actor.dp_actor"
MEGATRON = ("verl.workers.actor.megatron_actor", "verl_patches.workers.actor.megatron_actor")
ENGINE = "engine"
"""The back end of verl 0.8 and newer, whose loss is one function for all engines."""
PLACES = {
    "fsdp": "DataParallelPPOActor.update_policy",
    "megatron": "MegatronPPOActor.update_policy",
    ENGINE: "TrainingWorker.train_mini_batch",
}
_OF_LOSS = ("response_mask", "old_log_probs", "advantages", "ref_log_prob")

_running: list[Any] = []
"""The check of the update that runs in this process, if one does."""


def install() -> None:
    """Watch the actors once they are imported."""
    after_import(FSDP, _watch_fsdp)
    for module in MEGATRON:
        after_import(module, _watch_megatron)
    after_import("verl.workers.utils.losses", _watch_loss_of_engines)
    after_import("verl.workers.engine_workers", _watch_engines)


def _watch_losses(module: Any) -> None:
    """Wrap the functions of the loss under the module's names."""
    if hasattr(module, "compute_policy_loss"):
        module.compute_policy_loss = _observed(module.compute_policy_loss)
    if hasattr(module, "get_policy_loss_fn"):
        get = module.get_policy_loss_fn
        module.get_policy_loss_fn = functools.wraps(get)(lambda name: _observed(get(name)))
    kl_terms: list[Any] = []
    kl_penalty, agg_loss = module.kl_penalty, module.agg_loss

    @functools.wraps(kl_penalty)
    def keep_kl(*arguments: Any, **named: Any) -> Any:
        kl_terms[:] = [kl_penalty(*arguments, **named)]
        return kl_terms[0]

    @functools.wraps(agg_loss)
    def observe_entropy(loss_mat: Any, *arguments: Any, **named: Any) -> Any:
        if _running and not any(loss_mat is term for term in kl_terms):
            _running[0].entropy(loss_mat)
        return agg_loss(loss_mat, *arguments, **named)

    module.kl_penalty, module.agg_loss = keep_kl, observe_entropy


def _observed(policy_loss: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(policy_loss)
    def observe(
        old_log_prob: Any, log_prob: Any, advantages: Any, response_mask: Any, *others: Any, **named: Any
    ) -> Any:
        if _running:
            _running[0].policy_loss(old_log_prob, log_prob, advantages, response_mask)
        return policy_loss(old_log_prob, log_prob, advantages, response_mask, *others, **named)

    return observe


def _watch_fsdp(module: Any) -> None:
    _watch_losses(module)
    actor = module.DataParallelPPOActor
    update_policy, forward, step = actor.update_policy, actor._forward_micro_batch, actor._optimizer_step

    @functools.wraps(update_policy)
    def update_and_check(self: Any, data: Any) -> Any:
        return _checked("fsdp", self, data, lambda: update_policy(self, data))

    @functools.wraps(forward)
    def forward_and_check(self: Any, micro_batch: Any, temperature: float, *others: Any, **named: Any) -> Any:
        import torch

        batch = {name: value for name, value in micro_batch.items() if isinstance(value, torch.Tensor)}
        if _running:
            _running[0].begin(batch)
        return _with_log_probs(
            self, batch, float(temperature), lambda: forward(self, micro_batch, temperature, *others, **named)
        )

    @functools.wraps(step)
    def compare_and_step(self: Any) -> Any:
        if _running:
            _running[0].optimizer_step(_rate(self.actor_optimizer))
        return step(self)

    actor.update_policy, actor._forward_micro_batch = update_and_check, forward_and_check
    actor._optimizer_step = compare_and_step


def _with_log_probs(actor: Any, batch: Any, temperature: float, forward: Callable[[], Any]) -> Any:
    """Return entropy and log-probabilities of a pass, compared with those of the model's logits."""
    from .log_probabilities import LOG_PROBS, require_log_probs

    if actor.use_remove_padding or getattr(actor, "use_fused_kernels", False):
        not_recomputed(LOG_PROBS, "the model's logits are packed or fused with the loss")
        return forward()
    width = batch["responses"].shape[1]
    kept: list[Any] = []

    def keep(_module: Any, _arguments: Any, output: Any) -> None:
        kept.append(output.logits[:, -width - 2 :].detach().clone())

    handle = actor.actor_module.register_forward_hook(keep)
    try:
        entropy, log_probs = forward()
    finally:
        handle.remove()
    mask = batch["attention_mask"][:, -width:]
    require_log_probs(log_probs.detach(), kept[0], batch["responses"], mask, temperature)
    return entropy, log_probs


def _watch_megatron(module: Any) -> None:
    """Watch the module's functions, and the actor's methods, which cann-recipes-train replaces in verl's class."""
    _watch_losses(module)
    schedule = module.get_forward_backward_func

    @functools.wraps(schedule)
    def watched_schedule() -> Callable[..., Any]:
        upstream = schedule()

        @functools.wraps(upstream)
        def run(*, forward_step_func: Any, **named: Any) -> Any:
            return upstream(forward_step_func=_watched_step(forward_step_func), **named)

        return run

    module.get_forward_backward_func = watched_schedule
    actor = module.MegatronPPOActor
    update_policy, make_iterator = actor.update_policy, actor.make_minibatch_iterator
    if getattr(update_policy, "npu_rl_checks", False):
        return

    @functools.wraps(make_iterator)
    def keep_rows(self: Any, data: Any) -> Any:
        self._npu_rl_update = data
        return make_iterator(self, data)

    @functools.wraps(update_policy)
    def update_and_check(self: Any, dataloader: Iterable[Any]) -> Any:
        data = vars(self).pop("_npu_rl_update", None)
        compared = _compared_steps(self, dataloader)
        return _checked("megatron", self, data, lambda: update_policy(self, compared))

    update_and_check.npu_rl_checks = True  # type: ignore[attr-defined]
    actor.update_policy, actor.make_minibatch_iterator = update_and_check, keep_rows


def _compared_steps(actor: Any, dataloader: Iterable[Any]) -> Iterator[Any]:
    """Yield the mini batches, and compare each once the actor asks for the next."""
    for data in dataloader:
        yield data
        _running[0].optimizer_step(_rate(actor.actor_optimizer))


def _watched_step(forward_step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward_step)
    def watch(*arguments: Any, **named: Any) -> Any:
        output, loss = forward_step(*arguments, **named)

        @functools.wraps(loss)
        def begin_and_compute(*of_output: Any, **others: Any) -> Any:
            if _running and "data" in getattr(loss, "keywords", {}):
                _running[0].begin(dict(loss.keywords["data"].items()))
            return loss(*of_output, **others)

        return output, begin_and_compute

    return watch


def _watch_loss_of_engines(module: Any) -> None:
    """Watch verl/workers/utils/losses.py@v0.8.0."""
    _watch_losses(module)
    ppo_loss = module.ppo_loss

    @functools.wraps(ppo_loss)
    def begin_and_compute(config: Any, model_output: Any, data: Any, dp_group: Any = None) -> Any:
        if _running:
            batch = data.select(*(name for name in _OF_LOSS if name in data)).to_padded_tensor()
            sizes = {name: data[name] for name in ("dp_size", "batch_num_tokens", "global_batch_size")}
            _running[0].begin(dict(batch.items()), {**sizes, "horizon": config.loss_scale_factor})
        return ppo_loss(config, model_output, data, dp_group)

    module.ppo_loss = begin_and_compute


def _watch_engines(module: Any) -> None:
    """Watch the updates of verl/workers/engine_workers.py@v0.8.0; a critic's have another loss."""
    worker = module.TrainingWorker
    train_mini_batch, train_batch = worker.train_mini_batch, worker.train_batch

    @functools.wraps(train_mini_batch)  # with verl's marks on it
    def update_and_check(self: Any, data: Any) -> Any:
        config = getattr(self.loss_fn, "keywords", {}).get("config")
        if config is None or not hasattr(config, "policy_loss"):
            return train_mini_batch(self, data)
        return _checked(ENGINE, self, data, lambda: train_mini_batch(self, data), config)

    @functools.wraps(train_batch)
    def train_and_compare(self: Any, data: Any) -> Any:
        result = train_batch(self, data)
        if _running:
            _running[0].optimizer_step(_rate(self.engine.optimizer))
        return result

    worker.train_mini_batch, worker.train_batch = update_and_check, train_and_compare


def _checked(back_end: str, actor: Any, data: Any, update: Callable[[], Any], config: Any = None) -> Any:
    """Run an update, and check it.

    Args:
        config: The actor's configuration, if it has it elsewhere than in `config`.
    """
    from .update_check import History, UpdateCheck

    if not hasattr(actor, "_npu_rl_history"):
        actor._npu_rl_history = History()
    meta = getattr(data, "meta_info", {})
    batch = dict(data.batch.items()) if hasattr(data, "batch") else None
    check = UpdateCheck(
        back_end, config or actor.config, batch, actor._npu_rl_history, meta.get("global_steps")
    )
    _running[:] = [check]
    try:
        result = update()
    finally:
        _running.clear()
    chunks = back_end == ENGINE and isinstance(actor.engine.module, list)
    if (back_end == "megatron" or chunks) and not _is_last_stage():
        return result
    hook_used(PLACES[back_end])
    if check.compared:
        hook_fired(PLACES[back_end])
        check.end()
    return result


def _is_last_stage() -> bool:
    from megatron.core import parallel_state

    return bool(parallel_state.is_pipeline_last_stage(ignore_virtual=True))


def _rate(optimizer: Any) -> float:
    """Return the learning rate of the next step, 0 if the optimizer has none."""
    groups = getattr(optimizer, "param_groups", None) or []
    return max((float(group.get("lr") or 0.0) for group in groups), default=0.0)
