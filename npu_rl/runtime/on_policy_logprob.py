"""Adaptation on-policy-logprob: the loss's old log-probabilities are the ones it has just computed. Off by default.

A batch that is one mini batch, gone through once, is one optimizer step: the policy that is updated is the one that
gave the old log-probabilities, and the two differ only by how they were computed (other micro batches, other
kernels). With the switch on, `log_prob.detach()` takes the place of the old ones in verl's loss
(verl/workers/actor/megatron_actor.py:420@55e3c5b, verl/workers/utils/losses.py:95@v0.8.0), so that
- the ratio is exactly 1 and its gradient the policy gradient, -advantage * grad(log_prob);
- nothing is ever clipped: `actor/pg_clipfrac` and `actor/pg_clipfrac_lower` are exactly 0;
- **`actor/ppo_kl` is exactly 0** at every step, and no longer shows how far training and the computation
  of the old log-probabilities are apart. A mismatch that it would have shown has to be looked for elsewhere.
Losses that penalise the distance from the old policy (`loss_mode: kl_cov`) lose that penalty, which is 0 here too.
The trainer computes the old log-probabilities all the same: this saves no time.
"""

from __future__ import annotations

from typing import Any

from .switches import enabled
from .used import count

SLUG = "on-policy-logprob"


def old_log_prob(old: Any, log_prob: Any, config: Any) -> Any:
    """Return the log-probabilities that the loss takes as those of the policy that generated the responses.

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
    """Raises ValueError if the batch makes more than one optimizer step, while the switch is on.

    The second step would be off-policy, and the loss could no longer see it. The configuration alone doesn't show
    it: the size of the batch is `data.train_batch_size`, which workers aren't given.

    Args:
        answers: The number of responses of the batch on this rank.
        config: verl's actor configuration, whose `ppo_mini_batch_size` verl has made responses per rank.
    """
    if enabled(SLUG, default=False):
        _one_step(answers, config.ppo_mini_batch_size, config.ppo_epochs)


def check_update(data: Any, ranks: int) -> None:
    """Raise ValueError as `check` does, where verl 0.8 and newer pass all three numbers with the batch.

    Args:
        data: The rank's part of the batch, a TensorDict with what verl's `train_mini_batch` reads.
        ranks: The data-parallel ranks. `mini_batch_size` counts the responses of all (ray_trainer.py:1311@v0.8.0).
    """
    if not enabled(SLUG, default=False):
        return
    from verl.utils import tensordict_utils

    answers, mini = data.shape[0], tensordict_utils.get(data, "mini_batch_size")
    each = mini // ranks if mini else answers // tensordict_utils.get(data, "num_mini_batch")
    _one_step(answers, each, tensordict_utils.get(data, "epochs", default=1))


def refuse_bypass() -> None:
    """Raise ValueError while the switch is on, where verl takes the rollout's log-probabilities for the old ones.

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
