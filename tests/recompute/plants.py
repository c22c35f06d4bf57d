"""Wrong mathematics as changes of a tree's own text, and the words that have to name each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Plant:
    """A mistake.

    Attributes:
        named: The mistake's name in the report; "" if there is no mistake.
        changes: Texts of the modules of the loss, each with the text in its place.
        step: First step in which it shows; 0 where the report has no step.
        options: Options of the steps (`DEFAULTS` of the programs).
    """

    named: str
    changes: list[tuple[str, str]] = field(default_factory=list)
    step: int = 1
    options: dict[str, Any] = field(default_factory=dict)


KL, TWICE = "the KL term is missing or detached", "the loss is not divided by the number of micro batches"
OLD = "old log-probabilities are the reference's"
EARLY, LATE = "the mask is one token early", "the mask is one token late"
ENTROPY = "the entropy's sign is exchanged"
DETACHED = Plant(KL, [("logprob=log_prob, ref_logprob", "logprob=log_prob.detach(), ref_logprob")])
CLIPPING = {
    "clip bounds exchanged": Plant(
        "clip bounds are exchanged",
        [("ratio, 1 - cliprange_low, 1 + cliprange_high", "ratio, 1 - cliprange_high, 1 + cliprange_low")],
    ),
    "dual clip missing": Plant(
        "the dual clip is missing",
        [("torch.where(advantages < 0, clip_pg_losses2, clip_pg_losses1)", "clip_pg_losses1")],
        step=2,
    ),
}
_FAR = {"lr": 2.0}  # ratios above 3 on the table of logits
_ADDED_KL = "policy_loss = policy_loss + kl_loss * self.config.kl_loss_coef"
_MASK = 'response_mask = model_inputs["response_mask"]'
_PAD = "response_mask = torch.nn.functional.pad(response_mask"
_DIVIDED = "logits.div_(temperature)\n                    logits ="
_LOGITS = "logits = logits[:, -response_length - 1 : -1, :]"
_BEFORE = 'data.batch["old_log_probs"] = data.batch["ref_log_prob"]'

FSDP = {
    "clean": Plant(""),
    "clean, cut by tokens": Plant("", options={"dynamic": True}),
    "clean, one update a step": Plant("", options={"mini": 32}),
    **{f"clean, {mode}": Plant("", options={"mode": mode}) for mode in ("seq-mean-token-sum", "seq-mean-token-mean")},
    **{f"clean, {kind}": Plant("", options={"kl_kind": kind}) for kind in ("kl", "mse", "abs")},
    "KL dropped": Plant(KL, [(_ADDED_KL, "pass")]),
    "KL detached": DETACHED,
    "loss not divided": Plant(TWICE, [("loss = policy_loss / self.gradient_accumulation", "loss = policy_loss")]),
    "old is the reference, in the worker": Plant(
        OLD, [('old_log_prob = model_inputs["old_log_probs"]', 'old_log_prob = model_inputs["ref_log_prob"]')], step=2
    ),
    "old is the reference, before the worker": Plant(OLD, step=2, options={"driver": _BEFORE}),
    "reference is the actor": Plant(
        "the reference is the actor, not the model before training",
        step=2,
        options={"driver": 'data.batch["ref_log_prob"] = data.batch["old_log_probs"]'},
    ),
    "temperature twice": Plant(
        "the temperature divides twice", [(_DIVIDED, f"logits.div_(temperature); {_DIVIDED}")], step=0
    ),
    "log-probabilities late": Plant(
        "log-probabilities are one position late", [(_LOGITS, "logits = logits[:, -response_length:, :]")], step=0
    ),
    "mask early": Plant(EARLY, [(_MASK, f"{_MASK}; {_PAD}[:, 1:], (0, 1))")]),
    "mask late": Plant(LATE, [(_MASK, f"{_MASK}; {_PAD}[:, :-1], (1, 0), value=1)")]),
    "advantage's sign": Plant(
        "the advantage's sign is exchanged", [("pg_losses1 = -advantages", "pg_losses1 = advantages"),
                                              ("pg_losses2 = -advantages", "pg_losses2 = advantages"),
                                              ("pg_losses3 = -advantages", "pg_losses3 = advantages"),
                                              ("advantages < 0, clip", "advantages > 0, clip")]
    ),
    "entropy's sign": Plant(ENTROPY, [("pg_loss - entropy_loss", "pg_loss + entropy_loss")]),
    **CLIPPING,
}  # fmt: skip
LATER_FSDP = {
    "clean": Plant(""),
    "KL detached": DETACHED,
    "loss not divided": Plant(
        TWICE,
        [
            ("loss = policy_loss / self.gradient_accumulation", "loss = policy_loss"),
            ("loss = policy_loss * loss_scale_factor", "loss = policy_loss"),
        ],
    ),
}
_LOSS = "return policy_loss, [metrics, ret_entropy]"
_MEGATRON_MASK = 'response_mask = data["response_mask"].to(bool)'
MEGATRON = {
    "clean": Plant(""),
    "KL detached": DETACHED,
    "loss not divided": Plant(TWICE, [(_LOSS, "return policy_loss * 2, [metrics, ret_entropy]")]),
    "old is the reference": Plant(OLD, [('data["old_log_probs"]', 'data["ref_log_prob"]')], step=2),
    "mask late": Plant(LATE, [(_MEGATRON_MASK, f"{_MEGATRON_MASK}; {_PAD}[:, :-1], (1, 0), value=True)")]),
    "entropy's sign": Plant(ENTROPY, [("pg_loss - entropy_coeff", "pg_loss + entropy_coeff")]),
    "clip bounds exchanged": CLIPPING["clip bounds exchanged"],
    "dual clip missing": replace(CLIPPING["dual clip missing"], options=_FAR, step=1),
}  # fmt: skip
CANN = {
    "clean": Plant(""),
    "KL detached": DETACHED,
    "loss not divided": MEGATRON["loss not divided"],
    "mask late": Plant(
        LATE, [("attention_mask[:, -response_length:]", "attention_mask[:, -response_length - 1 : -1]")]
    ),
}
