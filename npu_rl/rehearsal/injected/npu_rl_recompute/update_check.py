"""The check of one update of an actor: what its loss is computed from, and the gradient that backward delivers.

The loss is observed, not computed a second time: a hook on the log-probabilities, and on the entropy, gets the gradient
of policy loss and KL term after every scaling. It is compared before the optimizer's step, with the pin's own scaling
of a micro batch's loss (`SCALES`). The average over data-parallel ranks, which follows, the clipping of the gradient's
norm and the learning rate are not recomputed.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from .counts import compared, not_recomputed
from .difference import Difference, report, require_equal
from .loss_gradient import (
    KL_KINDS,
    RELATIVE,
    Loss,
    Rows,
    entropy_gradient,
    known_mistakes,
    loss_gradient,
)

Batch = Mapping[str, torch.Tensor]

ROWS, RATIO = "rows of an update", "log-ratio before the first update of a step"
MASK, OLD, ADVANTAGES = "mask in the loss", "old log-probabilities in the loss", "advantages in the loss"
GRADIENT, ENTROPY = "gradient of log-probabilities", "gradient of the entropy"
KL, CLIPPING = "gradient of the KL term", "clipped ratios"
KL_LOSS = "KL loss above 0 after updates"
LEFT_OUT = {
    "mean gradient over data-parallel ranks": "tests compare it on two ranks",
    "clipping of the gradient's norm": "it is the optimizer's",
    "learning rate": "it is the optimizer's",
}

RATIO_LIMIT = 0.01
"""Greatest log-ratio between two passes with the same weights.

Over ten seeds, with micro batches of other sizes and cut by tokens (FSDP, 40 updates), and on Megatron's schedule (10),
the passes gave equal bits: tests/recompute/fsdp_steps.py and megatron_steps.py, torch 2.13 on a CPU.
"""
_VISIBLE_RATE = 1e-4
"""Learning rate from which one update changes log-probabilities by more than a clean pass."""
_ON_POLICY = (
    "NPU_RL_ON_POLICY_LOGPROB"  # the adaptation that takes the current log-probabilities for the old ones
)


class Cut(NamedTuple):
    """How an update is cut: a micro batch's rows, the number of micro batches, and the configured rows of both."""

    rows: int
    number: int
    mini: int
    micro: int


SCALES: Mapping[tuple[str, bool], Callable[[Cut], float]] = {
    ("fsdp", False): lambda cut: 1 / (cut.mini // cut.micro),
    ("fsdp", True): lambda cut: cut.rows / cut.mini,
    ("megatron", False): lambda cut: 1 / cut.number,
    ("megatron", True): lambda cut: 1 / cut.number,
}
"""Factor of a micro batch's loss, by back end and whether batches are cut by tokens (use_dynamic_bsz).

So it is at 54c9b73, 796871d, 55e3c5b and v0.5.0 (verl/workers/actor/dp_actor.py, update_policy). Megatron-core's
schedule divides by the number, however many rows each has (megatron/core/pipeline_parallel/schedules.py,
forward_step@core_v0.12.1 and core_r0.8.0). So `token-mean` is the mean of the means of micro batches.
"""


def engine_scale(mask: torch.Tensor, aggregation: str, sizes: Mapping[str, Any]) -> float:
    """Return the factor of a micro batch's loss from verl 0.8 on, whatever the back end.

    A token's weight is that in the mini batch of all ranks, times their number, since their gradients are averaged
    (agg_loss, verl/trainer/ppo/core_algos.py:1138@v0.8.0).

    Args:
        mask: Of the micro batch's responses.
        sizes: dp_size, batch_num_tokens, global_batch_size and horizon, of all ranks; None where not given.
    """
    rows, ranks = float((mask.sum(1) > 0).sum()), float(sizes["dp_size"])
    if aggregation == "token-mean":
        tokens = float(mask.sum())
        return (
            ranks * tokens / float(tokens if sizes["batch_num_tokens"] is None else sizes["batch_num_tokens"])
        )
    share = ranks / float(sizes["global_batch_size"] or rows)
    if aggregation == "seq-mean-token-sum-norm":
        return share * mask.shape[1] / float(sizes["horizon"] or mask.shape[1])
    return share * mask.shape[0]


def loss_of(config: Any) -> Loss:
    """Return the loss of an actor's configuration."""

    def value(name: str, default: Any = None) -> Any:
        found = config.get(name, default)
        return default if found is None else found

    clip = float(value("clip_ratio", 0.2))
    policy = value("policy_loss", {})
    return Loss(
        mode=str(policy.get("loss_mode", "vanilla")),
        low=float(value("clip_ratio_low", clip)),
        high=float(value("clip_ratio_high", clip)),
        dual=float(value("clip_ratio_c", 3.0)),
        aggregation=str(value("loss_agg_mode", "token-mean")),
        kl=KL_KINDS[str(value("kl_loss_type", "low_var_kl"))] if value("use_kl_loss", False) else None,
        kl_coefficient=float(value("kl_loss_coef", 0.0)),
        entropy=float(value("entropy_coeff", 0.0)),
    )


def response_mask(batch: Batch) -> torch.Tensor:
    """Return the mask of a batch's responses, which workers of verl 0.4 take from the attention's."""
    if "response_mask" in batch:
        return batch["response_mask"]
    return batch["attention_mask"][:, -batch["responses"].shape[1] :]


def row_keys(batch: Batch) -> list[tuple[bytes, bytes]]:
    """Return two hashes of each row: of its tokens, and of what the loss is computed from."""
    tokens = [batch["input_ids"].long(), batch["attention_mask"].long()]
    values = [response_mask(batch).double(), batch["advantages"].double()]
    values += [batch[name].double() for name in ("old_log_probs", "ref_log_prob") if name in batch]
    return [
        (_digest(one), _digest(other))
        for one, other in zip(torch.cat(tokens, 1).cpu(), torch.cat(values, 1).cpu(), strict=True)
    ]


def _digest(row: torch.Tensor) -> bytes:
    return hashlib.blake2b(row.contiguous().numpy().tobytes(), digest_size=16).digest()


@dataclass
class Observed:
    """A micro batch, and what the loss got of it and backward delivered."""

    batch: Batch
    old: torch.Tensor
    current: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor
    sizes: Mapping[str, Any] | None = None
    gradient: torch.Tensor | None = None
    entropy: torch.Tensor | None = None
    entropy_rounding: float = 0.0


@dataclass
class History:
    """What is known of an actor's earlier updates in this process."""

    updates: int = 0
    learned: bool = False
    noted: set[str] = field(default_factory=set)


class UpdateCheck:
    """The check of one call of update_policy.

    Args:
        back_end: "fsdp", "megatron" or, from verl 0.8 on, "engine".
        config: The actor's configuration.
        batch: All rows of the update; None if they are not known.
        history: The actor's.
        step: The trainer's step, or None.
    """

    def __init__(
        self, back_end: str, config: Any, batch: Batch | None, history: History, step: int | None
    ) -> None:
        self._back_end, self._config, self._history, self._step = back_end, config, history, step
        self._loss = loss_of(config)
        self._rows: Counter[tuple[bytes, bytes]] | None = None
        if batch is not None:
            keys = row_keys(batch)
            self._rows = Counter(keys * int(config.get("ppo_epochs", 1) or 1))
        self._open: Batch | None = None
        self._sizes: Mapping[str, Any] | None = None
        self._micro: list[Observed] = []
        self._optimizer_steps = 0
        self._number = 0
        history.updates += 1

    @property
    def compared(self) -> bool:
        """Whether gradients of a mini batch have been compared."""
        return self._optimizer_steps > 0

    def begin(self, batch: Batch, sizes: Mapping[str, Any] | None = None) -> None:
        """Note the micro batch whose loss is computed next.

        Args:
            sizes: As of engine_scale, of an engine.
        """
        self._open, self._sizes = batch, sizes
        if self._rows is None:
            return
        known = set(self._rows)
        for row, key in enumerate(row_keys(batch)):
            if not self._rows[key]:
                same = any(tokens == key[0] for tokens, _ in known)
                what = "a row with other values than it was sent with" if same else "a row that was not sent"
                if key in known:
                    what = "a row more often than it was sent"
                report(Difference(ROWS, what, "each row once", row=row, step=self._step))
            self._rows[key] -= 1

    def policy_loss(
        self, old: torch.Tensor, current: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
    ) -> None:
        """Note the arguments of the policy loss, and wait for the gradient of the current log-probabilities."""
        if self._open is None:
            return
        micro = Observed(self._open, *(value.detach().double() for value in (old, current, advantages, mask)))
        micro.sizes, self._open = self._sizes, None
        self._micro.append(micro)
        if current.requires_grad:
            current.register_hook(lambda gradient: setattr(micro, "gradient", gradient.detach().double()))

    def entropy(self, entropy: torch.Tensor) -> None:
        """Wait for the gradient of the entropy of the last micro batch."""
        if self._micro and entropy.requires_grad:
            micro = self._micro[-1]
            micro.entropy_rounding = torch.finfo(entropy.dtype).eps
            entropy.register_hook(lambda gradient: setattr(micro, "entropy", gradient.detach().double()))

    def optimizer_step(self, rate: float) -> None:
        """Compare what the mini batch's micro batches have delivered.

        Args:
            rate: Learning rate of the step that follows.
        """
        micro, self._micro = self._micro, []
        if not micro:
            return
        rows = [self._rows_of(one) for one in micro]
        self._compare_arguments(micro, rows)
        if self._optimizer_steps == 0:
            self._compare_ratio(rows)
            self._compare_reference(rows)
        self._compare_gradients(micro, rows)
        self._optimizer_steps += 1
        self._history.learned = self._history.learned or rate >= _VISIBLE_RATE

    def end(self) -> None:
        """Report rows that no micro batch had, and count what is left out."""
        if self._rows is not None:
            left = sum(self._rows.values())
            if left:
                report(Difference(ROWS, f"{left} rows left out", "each row once", step=self._step))
            compared(ROWS)
        for quantity, why in LEFT_OUT.items():
            self._left_out(quantity, why)

    def _left_out(self, quantity: str, why: str) -> None:
        if quantity not in self._history.noted:
            self._history.noted.add(quantity)
            not_recomputed(quantity, why)

    def _rows_of(self, micro: Observed) -> Rows:
        """Return what the loss has to be computed from."""
        batch, current = micro.batch, micro.current
        old = batch["old_log_probs"].double() if "old_log_probs" in batch else current
        if "old_log_probs" not in batch or os.environ.get(_ON_POLICY) == "1":
            old = current
            self._left_out(RATIO, "the trainer takes the current log-probabilities for the old ones")
        return Rows(
            current=current,
            old=old,
            advantages=batch["advantages"].double(),
            mask=response_mask(batch).double(),
            reference=batch["ref_log_prob"].double() if self._loss.kl else current,
        )

    def _compare_arguments(self, micro: list[Observed], rows: list[Rows]) -> None:
        want = {name: torch.cat([getattr(one, name) for one in rows]) for name in vars(rows[0])}
        mask = want["mask"]
        first, last = torch.ones_like(mask[:, :1]), torch.zeros_like(mask[:, :1])
        mistakes = {
            "mask": {
                "the mask is one token early": torch.cat([mask[:, 1:], last], 1),
                "the mask is one token late": torch.cat([first, mask[:, :-1]], 1),
                "the mask is one token late, without the first": torch.cat([last, mask[:, :-1]], 1),
                "the mask has every token": torch.ones_like(mask),
            },
            "old": {
                "old log-probabilities are the reference's": want["reference"],
                "old log-probabilities are the current ones": want["current"],
            },
            "advantages": {"the advantage's sign is exchanged": -want["advantages"]},
        }
        for name, quantity in {"mask": MASK, "old": OLD, "advantages": ADVANTAGES}.items():
            got = torch.cat([getattr(one, name) for one in micro])
            require_equal(quantity, got, want[name], 0.0, lambda name=name: mistakes[name], self._step)  # type: ignore[misc]
            compared(quantity)

    def _compare_ratio(self, rows: list[Rows]) -> None:
        """Compare the pass of the update with the one before it, while both have the same weights."""
        current, old, mask, reference = (
            torch.cat([getattr(one, name) for one in rows])
            for name in ("current", "old", "mask", "reference")
        )
        if RATIO in self._history.noted:
            return

        def mistakes() -> Mapping[str, torch.Tensor]:
            return {
                "old log-probabilities are the reference's": (current - reference) * mask,
                "log-probabilities are one position early": (current - current.roll(-1, 1)) * mask,
                "log-probabilities are one position late": (current - current.roll(1, 1)) * mask,
            }

        got = (current - old) * mask
        require_equal(RATIO, got, torch.zeros_like(got), RATIO_LIMIT, mistakes, self._step)
        shifted = ((current - old.roll(-1, 1)) * mask)[:, :-1].abs()
        if bool((shifted > RATIO_LIMIT).any()):  # else nobody could see a shift
            compared(RATIO)

    def _compare_reference(self, rows: list[Rows]) -> None:
        """Report a KL of 0 after an update: the reference has the actor's weights."""
        if self._loss.kl is None or not self._history.learned:
            return
        apart = max(float(((one.current - one.reference) * one.mask).abs().max()) for one in rows)
        noise = max(float(((one.current - one.old) * one.mask).abs().max()) for one in rows)
        if apart <= noise:
            mistake = "the reference is the actor, not the model before training"
            got = f"log-probabilities {apart:.2g} from the reference's, {noise:.2g} from the actor's own"
            report(Difference(KL_LOSS, got, "above 0", mistake=mistake, step=self._step))
        compared(KL_LOSS)

    def _compare_gradients(self, micro: list[Observed], rows: list[Rows]) -> None:
        loss, number = self._loss, len(micro)
        if loss.mode not in ("vanilla", "gspo"):
            self._left_out(GRADIENT, f"npu-rl has no formula of {loss.mode}")
            return
        if loss.mode == "gspo" and self._back_end == "engine" and loss.aggregation != "seq-mean-token-mean":
            self._left_out(GRADIENT, f"GSPO's own weights are not those of {loss.aggregation}")
            return
        if self._back_end == "engine":
            scales = [
                engine_scale(one.mask, loss.aggregation, noted.sizes or {})
                for one, noted in zip(rows, micro, strict=True)
            ]
        else:
            sizes = (
                self._config.get("ppo_mini_batch_size"),
                self._config.get("ppo_micro_batch_size_per_gpu") or 1,
            )
            scale = SCALES[self._back_end, bool(self._config.get("use_dynamic_bsz", False))]
            scales = [scale(Cut(len(one.mask), number, *sizes)) for one in rows]
        cases = [(one, loss, factor) for one, factor in zip(rows, scales, strict=True)]
        own = [loss_gradient(*case) for case in cases]
        got = torch.cat([_delivered(one.gradient, one) for one in micro])
        want = torch.cat([one.values for one in own])
        tolerances = torch.cat([one.tolerances for one in own])

        def mistakes() -> Mapping[str, torch.Tensor]:
            of_each = [dict(known_mistakes(*case, number)) for case in cases]
            return {
                name: torch.cat([loss_gradient(*one[name]()).values for one in of_each])
                for name in of_each[0]
            }

        require_equal(GRADIENT, got, want, tolerances, mistakes, self._step)
        compared(GRADIENT)
        for quantity, left_out in (
            (KL, {"kl": None}),
            (CLIPPING, {"low": torch.inf, "high": torch.inf, "dual": None}),
        ):
            without = [
                loss_gradient(one, _without(loss, left_out), factor).values for one, _, factor in cases
            ]
            if bool(((torch.cat(without) - want).abs() > tolerances).any()):
                compared(quantity)
        if loss.entropy:
            self._compare_entropy(micro, [(one.mask, factor) for one, _, factor in cases])
        self._note_weights(rows)

    def _compare_entropy(self, micro: list[Observed], cases: list[tuple[torch.Tensor, float]]) -> None:
        loss = self._loss
        want = torch.cat([entropy_gradient(mask, loss, factor) for mask, factor in cases])
        got = torch.cat([_delivered(one.entropy, one) for one in micro])

        def mistakes() -> Mapping[str, torch.Tensor]:
            return {
                "the entropy's sign is exchanged": -want,
                "the entropy is missing or detached": torch.zeros_like(want),
                "the loss is not divided by the number of micro batches": want * len(micro),
            }

        relative = max(RELATIVE, *(one.entropy_rounding for one in micro))
        require_equal(ENTROPY, got, want, relative * want.abs(), mistakes, self._step)
        compared(ENTROPY)

    def _note_weights(self, rows: list[Rows]) -> None:
        """Note once how far upstream's mean of micro batches' means is from the mean over all tokens."""
        if self._loss.aggregation != "token-mean" or len(rows) < 2 or self._back_end == "engine":
            return
        tokens = [float(one.mask.sum()) for one in rows]
        off = max(abs(sum(tokens) / (len(tokens) * own) - 1) for own in tokens if own)
        if off > 1e-6:
            why = "verl before 0.8 averages the means of micro batches: a token's weight is off by up to "
            self._left_out("mean over all tokens of an update", f"{why}{off:.0%} in the first update")


def _delivered(gradient: torch.Tensor | None, micro: Observed) -> torch.Tensor:
    return torch.zeros_like(micro.current) if gradient is None else gradient


def _without(loss: Loss, changes: Mapping[str, Any]) -> Loss:
    return replace(loss, **changes)
