"""Adaptation on-policy-logprob: the loss uses its own new log-probabilities as the old ones. Off by default.

A batch that is one mini batch, used for one epoch, is one optimizer step: the old log-probabilities come from the very
policy that is updated, and differ from the new ones only by their computation (other micro batches, other kernels).
With the switch on, `log_prob.detach()` replaces the old ones in verl's loss
(verl/workers/actor/megatron_actor.py:420@55e3c5b, verl/workers/utils/losses.py:95@v0.8.0), so that
- the ratio is exactly 1 and its gradient the policy gradient, -advantage * grad(log_prob);
- nothing is ever clipped: `actor/pg_clipfrac` and `actor/pg_clipfrac_lower` are exactly 0;
- **`actor/ppo_kl` is exactly 0** at every step, and no longer shows the difference between training and the
  computation of the old log-probabilities. A mismatch that it would have shown must be found by other means.
Losses that penalise the distance from the old policy (`loss_mode: kl_cov`) lose that penalty, which is 0 here too.
The trainer still computes the old log-probabilities: this saves no time.
"""

from __future__ import annotations

from typing import Any

from .switches import enabled
from .used import count

SLUG = "on-policy-logprob"


def old_log_prob(old: Any, log_prob: Any, config: Any) -> Any:
    """Return the log-probabilities that the loss uses as the old policy's.

    old, log_prob: [responses, response length], float, of one micro batch. config: verl's actor configuration.
    Returns `old` while the switch is off, and `log_prob` without its gradient while it is on. Raises ValueError,
    as `check` does, for more than one epoch.
    """
    if not enabled(SLUG, default=False):
        return old
    _one_epoch(config.ppo_epochs)
    count(SLUG)
    return log_prob.detach()


def check(answers: int, config: Any) -> None:
    """Raise ValueError if the batch makes more than one optimizer step while the switch is on.

    The second step would be off-policy, and the loss could no longer correct for it. The configuration alone doesn't
    show it: the batch size is `data.train_batch_size`, which workers don't receive.

    Args:
        answers: The batch's number of responses on this rank.
        config: verl's actor configuration, after verl converted `ppo_mini_batch_size` to responses per rank.
    """
    if enabled(SLUG, default=False):
        _one_step(answers, config.ppo_mini_batch_size, config.ppo_epochs)


def check_update(data: Any, ranks: int) -> None:
    """Raise ValueError like `check`, for verl 0.8 and newer, which pass all three numbers with the batch.

    Args:
        data: The rank's part of the batch, a TensorDict with what verl's `train_mini_batch` reads.
        ranks: The number of data-parallel ranks. `mini_batch_size` counts all their responses
            (ray_trainer.py:1311@v0.8.0).
    """
    if not enabled(SLUG, default=False):
        return
    from verl.utils import tensordict_utils

    answers, mini = data.shape[0], tensordict_utils.get(data, "mini_batch_size")
    each = mini // ranks if mini else answers // tensordict_utils.get(data, "num_mini_batch")
    _one_step(answers, each, tensordict_utils.get(data, "epochs", default=1))


def refuse_bypass() -> None:
    """Raise ValueError if verl uses the rollout's log-probabilities as the old ones while the switch is on.

    The ratio then corrects for the rollout's distribution (`algorithm.rollout_correction.bypass_mode`), and this
    adaptation would make it 1.
    """
    if enabled(SLUG, default=False):
        raise ValueError(
            "NPU_RL_ON_POLICY_LOGPROB=1 conflicts with algorithm.rollout_correction.bypass_mode: there the old "
            "log-probabilities are the rollout's, and the ratio corrects for them. Either set bypass_mode to false, or "
            "leave the adaptation on-policy-logprob off (NPU_RL_ON_POLICY_LOGPROB=0)."
        )


def _one_step(answers: int, mini: int, epochs: int) -> None:
    _one_epoch(epochs)
    if answers != mini:
        raise _refused(
            f"a rank has {answers} responses of the batch and its mini batch is {mini}",
            "set actor.mini_batch to data.batch",
        )


def _one_epoch(epochs: int) -> None:
    if epochs != 1:
        raise _refused(f"actor.epochs is {epochs}", "set actor.epochs to 1")


def _refused(why: str, then: str) -> ValueError:
    return ValueError(
        f"NPU_RL_ON_POLICY_LOGPROB=1 is only right where a batch is one optimizer step, and {why}: later steps would "
        f"be off-policy without the ratio that corrects for it. Either {then}, or leave the adaptation "
        f"on-policy-logprob off (NPU_RL_ON_POLICY_LOGPROB=0)."
    )
