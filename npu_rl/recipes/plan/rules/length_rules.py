"""Rules on prompt and response lengths against the model, the engine and the data."""

from __future__ import annotations

from npu_rl.recipes.memory.training_memory import has_reference
from npu_rl.recipes.plan.rules import pins
from npu_rl.recipes.plan.rules.pins import mindspeed
from npu_rl.recipes.plan.rules.rule import Broken, broken, rule, without
from npu_rl.recipes.sizing.micro_batches import OLD_LOG_PROB, REFERENCE_LOG_PROB, UPDATE
from npu_rl.recipes.sizing.plan_inputs import CANN_SCHEDULER, ROLLOUT, TRANSFORMER, PlanInputs
from npu_rl.recipes.trainer_code.citations import Place
from npu_rl.recipes.trainer_code.overlong_prompts import CUT_LEFT

_SEQUENCES, _TOKENS = f"{ROLLOUT}.max_num_seqs", f"{ROLLOUT}.max_num_batched_tokens"
_CHUNKED, _LENGTH = f"{ROLLOUT}.enable_chunked_prefill", f"{ROLLOUT}.max_model_len"
_PROMPT, _RESPONSE = "data.max_prompt_length", "data.max_response_length"
_SCHEDULER = f"{ROLLOUT}.engine_kwargs.vllm.additional_config.ascend_scheduler_config"
_BALANCING, _CHECK = "verl/utils/seqlen_balancing.py", "chunked-prefill-check"
# Where sequences come without padding, the limit is compared with the longest there is.
_WITHOUT_PADDING = Place(_BALANCING, "max_seq_len = max(seq_len_effective)", pins.SERVERS)
_AT_LEAST = "be greater than or equal to max_num_seqs"
_MASK_SIZE = 2048  # tokens; the side of the NPU attention's compressed mask


@rule(
    (
        Place(pins.SPMD, "model context length should be greater than total sequence length", pins.VERL),
        Place(pins.SERVER, "should be less than or equal to ", pins.SERVERS),
    )
)
def _model_positions(facts: PlanInputs) -> Broken:
    """Check the length against the model's positions.

    A server takes config.json's maximum without the RoPE scaling factor, and without rollout.max_length responses end
    there.
    """
    length, shape, given = facts.length, facts.shape, facts.whole(_LENGTH) if facts.server_mode else None
    reach = int(shape.positions * shape.rope_factor) if shape else 0
    figures = f"{shape.positions} positions x rope factor {shape.rope_factor:g} = {reach}" if shape else ""
    if facts.server_mode:
        override = "actor_rollout_ref.model.override_config.max_position_embeddings"
        reach = facts.whole(override) or (shape.longest if shape else 0)
        figures = f"max_position_embeddings {reach}, where responses end"
    if length and reach and (given or length) > reach:
        left = reach - length + (facts.whole(_RESPONSE) or 0)
        fix = f"set data.response_length to {left} or less"
        if left <= 0:
            fix = f"set data.prompt_length so that with data.response_length it is {reach} or less"
        if given:
            figures, fix = f"{figures}, max_length {given}", f"set rollout.max_length to {reach} or less"
        else:
            figures += f", prompt and response {length} tokens"
        yield broken(figures, fix, _LENGTH if given else _RESPONSE, advice=facts.server_mode and not given)


@rule(certain=False)
def _rollout_max_length(facts: PlanInputs) -> Broken:
    length, longest = facts.length or 0, facts.whole(_LENGTH)
    if facts.vllm and longest and longest < length:
        figures = f"max_length {longest}, prompt and response of {length} tokens"
        yield broken(figures, f"set rollout.max_length to {length}, or leave it out", _LENGTH, _RESPONSE)


@rule(
    (
        Place("vllm/config.py", _AT_LEAST, pins.VLLM),
        Place("vllm/config/scheduler.py", _AT_LEAST, (*pins.VLLM_0_10, *pins.VLLM_0_18)),
    ),
    (
        Place(pins.SPMD, "max_num_seqs=", (pins.R1_ZERO, pins.PLUGIN)),
        Place(pins.SERVER, '"max_num_seqs": self.config.max_num_seqs', pins.SERVERS),
    ),
)
def _sequences_within_step(facts: PlanInputs) -> Broken:
    tokens, sequences = facts.whole(_TOKENS), facts.whole(_SEQUENCES)
    if facts.vllm and tokens is not None and sequences is not None and sequences > tokens:
        figures = (
            f"max_sequences {sequences}, max_batched_tokens {tokens}: each sequence needs a token of a step"
        )
        fix = f"set rollout.max_sequences to {tokens} or less, or rollout.max_batched_tokens to {sequences} or more"
        yield broken(figures, fix, _SEQUENCES, _TOKENS)


# verl's servers don't check it, and enable_chunked_prefill false doesn't reach vLLM, which chunks by default then
# (build_cli_args_from_config, verl/workers/rollout/vllm_rollout/utils.py:352@7aed6b2, :458@8851219).
@rule(
    Place(
        pins.SPMD,
        "Enable chunked prefill, max_num_batched_tokens is smaller than max_model_len",
        pins.UNPATCHED,
    )
)
def _prefill_budget(facts: PlanInputs) -> Broken:
    """Check a step's tokens; verl does so only with chunked prefill, and the V1 engine chunks in any case."""
    longest, tokens = facts.whole(_LENGTH) or facts.length or 0, facts.whole(_TOKENS)
    if (
        facts.vllm
        and facts.on(_CHUNKED)
        and tokens is not None
        and tokens < longest
        and _CHECK not in facts.switches
    ):
        state, switch, _ = without(facts, _CHECK, "")
        figures = f"max_batched_tokens {tokens}, max_length {longest}, with chunked prefill, {state}"
        fix = f"set rollout.max_batched_tokens to {longest} or more"
        yield broken(figures, " or ".join(filter(None, (fix, switch))), _TOKENS, _CHUNKED)


@rule(
    Place("vllm_ascend/core/scheduler.py", "FINISHED_IGNORED", pins.ANY_ASCEND),
    (pins.ADDITIONAL, CANN_SCHEDULER),
)
def _prompt_exceeds_prefill_step(facts: PlanInputs) -> Broken:
    """Check the Ascend scheduler, which prefills whole prompts unless its chunked prefill is on."""
    own, prompt = f"{_SCHEDULER}.max_num_batched_tokens", facts.whole(_PROMPT) or 0
    key = own if facts.whole(own) else _TOKENS
    tokens = facts.whole(key)
    checked = facts.values.value(_CHUNKED) and _CHECK not in facts.switches  # then prefill-budget reports it
    if not (facts.vllm and facts.whole_prompts) or (checked and not facts.ascend_scheduler_forced):
        return
    if tokens is not None and tokens < prompt:
        name = "rollout.max_batched_tokens" if key != own else ".".join(map(str, facts.path(own)))
        figures = (
            f"max_batched_tokens {tokens}, prompts of up to {prompt} tokens: the Ascend scheduler prefills a "
        )
        figures += "prompt in one step, and one that is longer gets no response"
        yield broken(figures, f"set {name} to {prompt} or more", key, _PROMPT)


@rule(
    Place(_BALANCING, "max_token_len must be greater than the sequence length", (*pins.VERL, *pins.SERVERS))
)
def _token_limit_holds_a_sequence(facts: PlanInputs) -> Broken:
    """Check that each token limit of a packed micro batch fits the longest sequence, including padding."""
    train, length = facts.sizes.train, facts.length or 0
    ranks, kind = (train.context, "context") if facts.megatron else (train.sequence, "sequence")
    roles = (UPDATE, OLD_LOG_PROB, *((REFERENCE_LOG_PROB,) if has_reference(facts) else ()))
    packed = [f"{part}.{limit}" for part, dynamic, limit, _ in roles if facts.on(f"{part}.{dynamic}")]
    limits = [(tokens, key) for key in packed if (tokens := facts.whole(key)) is not None]
    if limits and min(limits)[0] * ranks < length:
        tokens, key = min(limits)
        figures = f"{key} {tokens} x {kind} parallel {ranks} = {tokens * ranks}, prompt and response of {length} tokens"
        fix = f"set overrides.{key} to {-(-length // ranks)} or more"
        padded = not (facts.server_mode and facts.upstream.has(_WITHOUT_PADDING))
        yield broken(figures, fix, key, _RESPONSE, certain=padded)


@rule(
    mindspeed(
        "core/transformer/flash_attention/generate_mask/generate_mask.py", "seq_len = config.seq_length"
    ),
    certain=False,
)
def _attention_mask_size(facts: PlanInputs) -> Broken:
    trained, latent = (facts.transformer(name) for name in ("seq_length", "multi_head_latent_attention"))
    by_length = (
        facts.mindspeed and latent and facts.transformer("use_flash_attn")
    )  # others have the right mask
    if by_length and isinstance(trained, int) and trained != _MASK_SIZE:
        figures = (
            f"seq_length {trained}, by which MindSpeed makes a mask; the compressed causal mode that it uses "
        )
        figures += f"requires {_MASK_SIZE} x {_MASK_SIZE} for any sequence length"
        fix = f"set actor.transformer.seq_length to {_MASK_SIZE}"
        yield broken(figures, fix, f"{TRANSFORMER}.seq_length")


@rule()
def _overlong_prompts(facts: PlanInputs) -> Broken:
    """Advise on too long prompts, which the trainer may treat differently from the recipe's settings."""
    cut, anyway = facts.values.value("data.truncation"), facts.upstream.find(CUT_LEFT)
    if cut is None or not facts.length or facts.recipe.data.make or facts.on("data.filter_overlong_prompts"):
        return
    fix = "set data.filter_overlong to true, or data.overlong to left"
    keys = ("data.filter_overlong_prompts", "data.truncation")
    if anyway.holds and cut != "left":
        figures = (
            f"longer prompts are kept, and cut at their left, regardless of data.overlong ({anyway.where})"
        )
        yield broken(figures, fix, *keys, advice=True)
    if not anyway.holds and cut == "error":
        yield broken("longer prompts are kept, and one of them ends the run", fix, *keys, advice=True)
