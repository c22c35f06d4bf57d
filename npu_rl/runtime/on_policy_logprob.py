"""Adaptation on-policy-logprob: the loss's old log-probabilities are the ones it has just computed. Off by default.

A batch that is one mini batch, gone through once, is one optimizer step: the policy that is updated is the one that
gave the old log-probabilities, and the two differ only by how they were computed (other micro batches, other
kernels). With the switch on, `log_prob.detach()` takes the place of the old ones in verl's loss
(verl/workers/actor/megatron_actor.py:420@55e3c5b), so that
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
    """What the loss takes for the log-probabilities of the policy that generated the responses.

    old, log_prob: [responses, response length], float, of one micro batch. config: verl's actor configuration.
    Returns `old` while the switch is off, and `log_prob` without its gradient while it is on. Raises ValueError,
    as `check` does, for more than one epoch.
    """
    if not enabled(SLUG, default=False):
        return old
    _one_epoch(config)
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
    if not enabled(SLUG, default=False):
        return
    _one_epoch(config)
    if answers != config.ppo_mini_batch_size:
        raise _refused(
            f"a rank has {answers} responses of the batch and its mini batch is {config.ppo_mini_batch_size}",
            "set actor.mini_batch to data.batch",
        )


def _one_epoch(config: Any) -> None:
    if config.ppo_epochs != 1:
        raise _refused(
            f"actor.epochs is {config.ppo_epochs}",
            "set actor.epochs to 1",
        )


def _refused(why: str, then: str) -> ValueError:
    return ValueError(
        f"NPU_RL_ON_POLICY_LOGPROB=1 is only right where a batch is one optimizer step, and {why}: later steps would "
        f"be off-policy without the ratio that corrects for it. Either {then}, or leave the adaptation "
        f"on-policy-logprob off (NPU_RL_ON_POLICY_LOGPROB=0)."
    )
