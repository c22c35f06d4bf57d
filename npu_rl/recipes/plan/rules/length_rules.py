"""Rules on prompt and response lengths against the model, the engine and the data."""

from __future__ import annotations

from npu_rl.recipes.memory.training_memory import has_reference
from npu_rl.recipes.plan.rules.pins import (
    ADDITIONAL,
    ANY_ASCEND,
    MINDSPEED,
    PLUGIN,
    R1_ZERO,
    SERVER,
    SERVERS,
    SPMD,
    UNPATCHED,
    VERL,
    VLLM,
    VLLM_0_10,
    VLLM_0_18,
)
from npu_rl.recipes.plan.rules.rule import Outcome, Outcomes, rule
from npu_rl.recipes.sizing.micro_batches import OLD_LOG_PROB, REFERENCE_LOG_PROB, UPDATE
from npu_rl.recipes.sizing.plan_inputs import CANN_SCHEDULER, ROLLOUT, TRANSFORMER, PlanInputs
from npu_rl.recipes.trainer_code.citations import Place
from npu_rl.recipes.trainer_code.overlong_prompts import CUT_LEFT

_SEQUENCES, _TOKENS = f"{ROLLOUT}.max_num_seqs", f"{ROLLOUT}.max_num_batched_tokens"
_CHUNKED, _LENGTH = f"{ROLLOUT}.enable_chunked_prefill", f"{ROLLOUT}.max_model_len"
_RESPONSE, _SEQ = "data.max_response_length", f"{TRANSFORMER}.seq_length"
_SCHEDULER = f"{ROLLOUT}.engine_kwargs.vllm.additional_config.ascend_scheduler_config"
# Where sequences come without padding, the limit is compared with the longest there is.
_WITHOUT_PADDING = Place(
    "verl/utils/seqlen_balancing.py", "max_seq_len = max(seq_len_effective)", ("v0.8.0", "7aed6b2", "8851219")
)
_MASK_SIZE = 2048  # tokens; the side of the NPU attention's compressed mask


def _shorter(facts: PlanInputs, reach: int, length: int) -> str:
    """Return the fix for sequences that are too long: a shorter response, or a prompt if that alone is too long."""
    response = facts.whole(_RESPONSE) or 0
    if (left := reach - length + response) > 0:
        return f"set data.response_length to {left} or less"
    return f"set data.prompt_length so that with data.response_length it is {reach} or less"


@rule(
    "model-positions",
    (
        Place(SPMD, "model context length should be greater than total sequence length", VERL),
        Place(SERVER, "should be less than or equal to ", SERVERS),
    ),
    only=("length",),
)
def _model_positions(facts: PlanInputs) -> Outcomes:
    length = facts.length or 0
    if facts.server_mode:
        yield from _server_positions(facts, length)
    elif facts.shape and facts.shape.positions:
        reach, factor = facts.shape.positions, facts.shape.rope_factor
        yield Outcome(
            length <= reach * factor,
            f"prompt and response {length} tokens; {reach} positions x rope factor {factor:g} = {reach * factor:.0f}",
            _shorter(facts, int(reach * factor), length),
            (_RESPONSE,),
        )


def _server_positions(facts: PlanInputs, length: int) -> Outcomes:
    """Check a server's length against config.json's maximum, which verl uses without the RoPE scaling factor.

    Without rollout.max_length a server takes that number, and responses end there.
    """
    override = "actor_rollout_ref.model.override_config.max_position_embeddings"
    reach, given = facts.whole(override) or (facts.shape.longest if facts.shape else 0), facts.whole(_LENGTH)
    if reach:
        yield Outcome(
            (given or length) <= reach,
            f"max_position_embeddings {reach}, "
            + (
                f"max_length {given}"
                if given
                else f"prompt and response {length} tokens: responses end there"
            ),
            f"set rollout.max_length to {reach} or less" if given else _shorter(facts, reach, length),
            (_LENGTH if given else _RESPONSE,),
            advice=not given,
        )


@rule("rollout-max-length", certain=False, only=("vllm", "length"))
def _rollout_max_length(facts: PlanInputs) -> Outcomes:
    length = facts.length or 0
    longest = facts.whole(_LENGTH) or length
    yield Outcome(
        longest >= length,
        f"max_length {longest}, prompt and response of {length} tokens",
        f"set rollout.max_length to {length}, or leave it out",
        (_LENGTH, _RESPONSE),
    )


@rule(
    "sequences-within-step",
    (
        Place("vllm/config.py", "be greater than or equal to max_num_seqs", VLLM),
        Place(
            "vllm/config/scheduler.py",
            "be greater than or equal to max_num_seqs",
            (*VLLM_0_10, *VLLM_0_18),
        ),
    ),
    (
        Place(SPMD, "max_num_seqs=", (R1_ZERO, PLUGIN)),
        Place(SERVER, '"max_num_seqs": self.config.max_num_seqs', SERVERS),
    ),
    only=("vllm", "length"),
)
def _sequences_within_step(facts: PlanInputs) -> Outcomes:
    tokens, sequences = facts.whole(_TOKENS), facts.whole(_SEQUENCES)
    if tokens is not None and sequences is not None:
        yield Outcome(
            sequences <= tokens,
            f"max_sequences {sequences}, max_batched_tokens {tokens}: each sequence needs a token of a step",
            f"set rollout.max_sequences to {tokens} or less, or rollout.max_batched_tokens to {sequences} or more",
            (_SEQUENCES, _TOKENS),
        )


# verl's servers don't check it, and enable_chunked_prefill false doesn't reach vLLM, which chunks by default then
# (build_cli_args_from_config, verl/workers/rollout/vllm_rollout/utils.py:352@7aed6b2, :458@8851219).
@rule(
    "prefill-budget",
    Place(SPMD, "Enable chunked prefill, max_num_batched_tokens is smaller than max_model_len", UNPATCHED),
    only=("vllm", "length"),
)
def _prefill_budget(facts: PlanInputs) -> Outcomes:
    longest, tokens = facts.whole(_LENGTH) or facts.length or 0, facts.whole(_TOKENS)
    if tokens is None or not facts.on(
        _CHUNKED
    ):  # verl checks only then, and the V1 engine chunks in any case
        return
    relaxed, off = (
        "chunked-prefill-check" in facts.switches,
        "chunked-prefill-check" in facts.off,
    )
    yield Outcome(
        tokens >= longest or relaxed,
        f"max_batched_tokens {tokens}, max_length {longest}, with chunked prefill, "
        f"adaptation chunked-prefill-check {'on' if relaxed else 'off or absent'}",
        f"set rollout.max_batched_tokens to {longest} or more"
        + (", or adaptations.chunked-prefill-check to true" if off else ""),
        (_TOKENS, _CHUNKED),
    )


@rule(
    "prompt-exceeds-prefill-step",
    Place("vllm_ascend/core/scheduler.py", "FINISHED_IGNORED", ANY_ASCEND),
    (ADDITIONAL, CANN_SCHEDULER),
    only=("vllm", "whole_prompts"),
)
def _prompt_exceeds_prefill_step(facts: PlanInputs) -> Outcomes:
    """Check the Ascend scheduler, which prefills whole prompts unless its chunked prefill is on."""
    own, prompt = f"{_SCHEDULER}.max_num_batched_tokens", facts.whole("data.max_prompt_length")
    key = own if facts.whole(own) else _TOKENS
    tokens = facts.whole(key)
    if tokens is None or prompt is None:
        return
    checked = facts.values.value(_CHUNKED) and "chunked-prefill-check" not in facts.switches
    if checked and not facts.ascend_scheduler_forced and tokens < prompt:
        return  # the rule prefill-budget reports it
    name = "rollout.max_batched_tokens" if key != own else ".".join(map(str, facts.path(own)))
    yield Outcome(
        tokens >= prompt,
        f"max_batched_tokens {tokens}, prompts of up to {prompt} tokens: the Ascend scheduler prefills a prompt in one "
        "step, and one that is longer gets no response",
        f"set {name} to {prompt} or more",
        (key, "data.max_prompt_length"),
    )


@rule(
    "token-limit-holds-a-sequence",
    Place(
        "verl/utils/seqlen_balancing.py",
        "max_token_len must be greater than the sequence length",
        (*VERL, *SERVERS),
    ),
    only=("length",),
)
def _token_limit_holds_a_sequence(facts: PlanInputs) -> Outcomes:
    """Check that each token limit of a packed micro batch fits the longest sequence, including padding."""
    train, length = facts.sizes.train, facts.length or 0
    ranks, kind = (train.context, "context") if facts.megatron else (train.sequence, "sequence")
    roles = (UPDATE, OLD_LOG_PROB, *((REFERENCE_LOG_PROB,) if has_reference(facts) else ()))
    packed = [f"{part}.{limit}" for part, dynamic, limit, _ in roles if facts.on(f"{part}.{dynamic}")]
    limits = {key: tokens for key in packed if (tokens := facts.whole(key)) is not None}
    if limits:
        key = min(limits, key=lambda one: limits[one])
        yield Outcome(
            limits[key] * ranks >= length,
            f"{key} {limits[key]} x {kind} parallel {ranks} = {limits[key] * ranks}, prompt and response of "
            f"{length} tokens",
            f"set overrides.{key} to {-(-length // ranks)} or more",
            (key, _RESPONSE),
            certain=not (facts.server_mode and facts.upstream.has(_WITHOUT_PADDING)),
        )


def _masks_by_length(facts: PlanInputs) -> bool:
    latent = facts.transformer("multi_head_latent_attention")  # others have a mask of _MASK_SIZE
    return bool(facts.mindspeed and facts.transformer("use_flash_attn") and latent)


@rule(
    "attention-mask-size",
    Place(
        "mindspeed/core/transformer/flash_attention/generate_mask/generate_mask.py",
        "seq_len = config.seq_length",
        MINDSPEED,
    ),
    certain=False,
    only=("length",),
)
def _attention_mask_size(facts: PlanInputs) -> Outcomes:
    trained = facts.transformer("seq_length")
    if isinstance(trained, int) and _masks_by_length(facts):
        yield Outcome(
            trained == _MASK_SIZE,
            f"seq_length {trained}; MindSpeed creates a mask of this size, but the compressed causal mode that it "
            f"uses requires one of {_MASK_SIZE} x {_MASK_SIZE} for any sequence length",
            f"set actor.transformer.seq_length to {_MASK_SIZE}",
            (_SEQ,),
        )


@rule("training-seq-length", certain=False, only=("length",))
def _training_seq_length(facts: PlanInputs) -> Outcomes:
    trained, length = facts.transformer("seq_length"), facts.length or 0
    if isinstance(trained, int) and not _masks_by_length(facts):
        yield Outcome(
            trained >= length,
            f"seq_length {trained} for sequences of {length} tokens",
            f"set actor.transformer.seq_length to {length}",
            (_SEQ,),
            advice=True,
        )


@rule("overlong-prompts", certain=False, only=("length",))
def _overlong_prompts(facts: PlanInputs) -> Outcomes:
    """Yield advice on too long prompts, which the trainer may treat differently from the recipe's settings."""
    dropped, cut = facts.on("data.filter_overlong_prompts"), facts.values.value("data.truncation")
    if cut is None or facts.recipe.data.make:
        return
    anyway = facts.upstream.find(CUT_LEFT)
    instead = f"; what is kept is cut at its left, regardless of data.overlong ({anyway.where})"
    yield Outcome(
        dropped or (cut == "left" if anyway.holds else cut != "error"),
        f"longer prompts are {'left out' if dropped else 'kept'}, then: {cut}{instead if anyway.holds else ''}",
        "set data.filter_overlong to true, or data.overlong to left"
        + ("" if anyway.holds else ": one long prompt ends the run"),
        ("data.filter_overlong_prompts", "data.truncation"),
        advice=True,
    )
