"""Rules on the division of a step's responses and on their lengths."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from npu_rl.recipes.memory.training_memory import has_reference
from npu_rl.recipes.plan.rules.rule import Rule
from npu_rl.recipes.recipe.key_map import recipe_key_of
from npu_rl.recipes.sizing.batch_arithmetic import BrokenRule
from npu_rl.recipes.sizing.micro_batches import OLD_LOG_PROB, REFERENCE_LOG_PROB, UPDATE
from npu_rl.recipes.sizing.plan_inputs import ACTOR, GENERATED, ROLLOUT, TRANSFORMER, PlanInputs
from npu_rl.recipes.trainer_code.citations import Place
from npu_rl.recipes.trainer_code.overlong_prompts import CUT_LEFT

_BATCH, _MINI = "data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size"
_SEQUENCES, _TOKENS = f"{ROLLOUT}.max_num_seqs", f"{ROLLOUT}.max_num_batched_tokens"
_CHUNKED, _LENGTH = f"{ROLLOUT}.enable_chunked_prefill", f"{ROLLOUT}.max_model_len"
_RESPONSE = "data.max_response_length"
_AGENT = f"{ROLLOUT}.agent"
_WORKERS = f"{_AGENT}.num_workers"
_BYPASS = "algorithm.rollout_correction.bypass_mode"  # the old log-probs are the rollout's
# From verl 0.8 on, ReMax's greedy responses are generated together with the sampled ones.
_WITH_BASELINE = Place(
    "verl/trainer/ppo/ray_trainer.py",
    "DataProto.concat([gen_batch_output, gen_baseline_batch])",
    ("v0.8.0", "7aed6b2"),
)
# Where sequences come without padding, the limit is compared with the longest there is.
_WITHOUT_PADDING = Place(
    "verl/utils/seqlen_balancing.py", "max_seq_len = max(seq_len_effective)", ("v0.8.0", "7aed6b2", "8851219")
)
# Those of verl 0.7 and older, which split a batch unevenly; the trainer v1 of 0.9 fills it up to a multiple.
_OLD_WORKERS = "verl/workers/fsdp_workers.py"

_MASK_SIZE = 2048  # tokens; the side of the NPU attention's compressed mask


def batch_rules(facts: PlanInputs, broken: Mapping[str, BrokenRule]) -> Iterator[Rule]:
    """Yield the rules on the division of batches over data-parallel replicas and rollout engines.

    Args:
        broken: The trainer's own checks that fail, by rule id.
    """
    prompts, mini = facts.whole(_BATCH), facts.whole(_MINI)
    each = facts.whole(f"{ROLLOUT}.n")
    if each is not None and each < 1:
        key, figures = f"{ROLLOUT}.n", f"{each} responses of each prompt: must be 1 or more"
        yield Rule("responses-per-prompt", False, figures, f"set overrides.{key} to 1 or more", (key,))
        return
    if not (prompts and each and facts.replicas):
        return
    answers, copies = prompts * each, facts.replicas
    micro = facts.whole(f"{ACTOR}.ppo_micro_batch_size_per_gpu") or 1
    least = f"{copies} replicas x micro batch {micro} = {copies * micro}"
    figures = f"{prompts} prompts x {each} responses = {answers}; {least}"
    fix = f"set data.batch so that data.batch x rollout.responses is a multiple of {copies * micro}"
    yield _trainer_rule("batch-divisible-by-dp", broken, _BATCH, figures, fix)
    if mini:
        figures = f"mini batch of {mini} prompts in a batch of {prompts}"
        inside = _trainer_rule(
            "mini-batch-within-batch", broken, _MINI, figures, f"set actor.mini_batch to {prompts} or less"
        )
        if "on-policy-logprob" in facts.switches:  # which refuses a smaller one, too
            inside = replace(inside, fix=f"set actor.mini_batch to {prompts}, or data.batch to {mini}")
        yield inside
        yield Rule(
            "mini-batch-divisible-by-dp",
            mini * each % copies == 0,
            f"{mini} prompts x {each} responses = {mini * each}, over {copies} data-parallel replicas",
            f"set actor.mini_batch so that actor.mini_batch x rollout.responses is a multiple of {copies}",
            (_MINI,),
        )
        if not facts.on("trainer.use_v1") and facts.upstream.text(_OLD_WORKERS) is None:
            yield Rule(
                "batch-divisible-by-mini-batch",
                prompts % mini == 0,
                f"{prompts} prompts in mini batches of {mini}",
                f"set actor.mini_batch to {math.gcd(prompts, mini)}, or data.batch to a multiple of {mini}",
                (_MINI, _BATCH),
            )
    if facts.code is not None:
        yield from _micro_batch_rule(facts, answers, copies)
    yield from _generated_batch_rule(facts, prompts)
    if facts.engines and facts.generated:
        yield from _engine_rules(facts, facts.generated, facts.engines)


def _micro_batch_rule(facts: PlanInputs, answers: int, copies: int) -> Iterator[Rule]:
    """Check that a replica's share is a multiple of each pass's micro batch size, if that is set in responses."""
    mini, each = facts.whole(_MINI) or 0, facts.whole(f"{ROLLOUT}.n") or 1
    if facts.on("trainer.use_v1") and mini:  # fills a step up to a multiple of both
        together = math.lcm(mini * each, copies)
        answers = -(-answers // together) * together
    passes = [(UPDATE, mini * each)]
    if not facts.on(_BYPASS):
        passes.append((OLD_LOG_PROB, answers))
    if has_reference(facts):
        passes.append((REFERENCE_LOG_PROB, answers))
    shares = [
        (f"{part}.{size}_per_gpu", total // copies)
        for (part, dynamic, _, size), total in passes
        if total % copies == 0 and not facts.on(f"{part}.{dynamic}")
    ]
    sizes = [(key, share, micro) for key, share in shares if (micro := facts.whole(key) or 0) > 0]
    if not sizes:
        return
    key, share, micro = next((one for one in sizes if one[1] % one[2]), sizes[0])
    yield Rule(
        "micro-batch-divides-share",
        share % micro == 0,
        f"micro batches of {micro} of a replica's {share} responses",
        f"set {recipe_key_of(key) or f'overrides.{key}'} to {math.gcd(share, micro)}",
        (key,),
    )


def _trainer_rule(rule: str, broken: Mapping[str, BrokenRule], key: str, figures: str, fix: str) -> Rule:
    fault = broken.get(rule)
    keys = fault.keys if fault else (key,)
    return Rule(rule, fault is None, fault.message if fault else figures, fault.fix if fault else fix, keys)


def _generated_batch_rule(facts: PlanInputs, prompts: int) -> Iterator[Rule]:
    """Yield advice if a step trains on a batch other than data.batch because no filter selects groups.

    For the trainer v1 of verl 0.9 it is only the number of prompts that are read at once.
    """
    generated, chosen = facts.whole(GENERATED), facts.on("algorithm.filter_groups.enable")
    if generated is None or generated == prompts or chosen or facts.on("trainer.use_v1"):
        return
    yield Rule(
        "generated-batch-is-trained",
        False,
        f"{GENERATED} {generated}, data.batch {prompts}, filter_groups off: all {generated} prompts are trained on",
        f"set overrides.{GENERATED} to {prompts}, or data.batch to {generated}",
        (GENERATED,),
        advice=True,
    )


def _engine_rules(facts: PlanInputs, answers: int, engines: int) -> Iterator[Rule]:
    share = answers // engines
    key, word = (GENERATED, f"overrides.{GENERATED}") if GENERATED in facts.given else (_BATCH, "data.batch")
    if facts.server_mode:
        yield from _agent_worker_rule(facts, answers, key, word)
    else:
        yield Rule(
            "batch-divisible-by-rollout-dp",
            answers % engines == 0,
            f"{answers} responses over {engines} engines" + (f" = {share}" if answers % engines == 0 else ""),
            f"set {word} so that {word} x rollout.responses is a multiple of {engines}",
            (key, f"{ROLLOUT}.n"),
        )
    sequences = facts.whole(_SEQUENCES)
    if sequences:
        yield Rule(
            "max-sequences-one-wave",
            sequences >= share,
            f"max_sequences {sequences}, {share} responses an engine",
            f"set rollout.max_sequences to {share}: fewer are decoded in more than one wave",
            (_SEQUENCES,),
            advice=True,
        )


def _agent_worker_rule(facts: PlanInputs, answers: int, key: str, word: str) -> Iterator[Rule]:
    """Check that a step's responses divide evenly among the workers that send them to vLLM's servers.

    verl's newer trainer (trainer.use_v1) splits unevenly, an own manager (agent_loop_manager_class) as it likes.
    """
    workers, own = facts.whole(_WORKERS), facts.values.value(f"{_AGENT}.agent_loop_manager_class")
    padded = facts.env.get("VERL_AUTO_PADDING", "").upper() in ("TRUE", "1")
    if not workers or workers < 1 or own or padded or facts.on("trainer.use_v1"):
        return
    prompts, each = answers // (facts.whole(f"{ROLLOUT}.n") or 1), "rollout.responses"
    if facts.values.value("algorithm.adv_estimator") == "remax" and facts.upstream.has(_WITH_BASELINE):
        answers, each = answers + prompts, "(rollout.responses + 1)"
    fewer = math.gcd(answers, workers)
    yield Rule(
        "batch-divisible-by-agent-workers",
        answers % workers == 0,
        f"{answers} responses over {workers} agent loop workers"
        + (f" = {answers // workers}" if answers % workers == 0 else ""),
        f"set {word} so that {word} x {each} is a multiple of {workers}, or overrides.{_WORKERS} to {fewer}",
        (key, f"{ROLLOUT}.n", _WORKERS),
    )


def length_rules(facts: PlanInputs) -> Iterator[Rule]:
    """Yield the rules on prompt and response lengths against the model, the engine and the data."""
    length = facts.length
    if length is None:
        return
    if facts.server_mode:
        yield from _server_positions_rule(facts, length)
    elif facts.shape and facts.shape.positions:
        reach, stretch = facts.shape.positions, facts.shape.rope_factor
        yield Rule(
            "model-positions",
            length <= reach * stretch,
            f"prompt and response {length} tokens; {reach} positions x rope factor {stretch:g} = {reach * stretch:.0f}",
            _shorter(facts, int(reach * stretch), length),
            (_RESPONSE,),
        )
    if facts.vllm:
        yield from _engine_length_rules(facts, length)
    yield from _token_limit_rule(facts, length)
    trained = facts.transformer("seq_length")
    latent = facts.transformer("multi_head_latent_attention")  # others have a mask of _MASK_SIZE
    if isinstance(trained, int) and facts.mindspeed and facts.transformer("use_flash_attn") and latent:
        yield Rule(
            "attention-mask-size",
            trained == _MASK_SIZE,
            f"seq_length {trained}; MindSpeed creates a mask of this size, but the compressed causal mode that it "
            f"uses requires one of {_MASK_SIZE} x {_MASK_SIZE} for any sequence length",
            f"set actor.transformer.seq_length to {_MASK_SIZE}",
            (f"{TRANSFORMER}.seq_length",),
        )
    elif isinstance(trained, int):
        yield Rule(
            "training-seq-length",
            trained >= length,
            f"seq_length {trained} for sequences of {length} tokens",
            f"set actor.transformer.seq_length to {length}",
            (f"{TRANSFORMER}.seq_length",),
            advice=True,
        )
    if not facts.recipe.data.make:
        yield from _overlong_rule(facts)


def _overlong_rule(facts: PlanInputs) -> Iterator[Rule]:
    """Yield advice on too long prompts, which the trainer may treat differently from the recipe's settings."""
    dropped, cut = facts.on("data.filter_overlong_prompts"), facts.values.value("data.truncation")
    if cut is None:
        return
    anyway = facts.upstream.find(CUT_LEFT)
    instead = f"; what is kept is cut at its left, regardless of data.overlong ({anyway.where})"
    ends = "one long prompt ends the run"
    yield Rule(
        "overlong-prompts",
        dropped or (cut == "left" if anyway.holds else cut != "error"),
        f"longer prompts are {'left out' if dropped else 'kept'}, then: {cut}{instead if anyway.holds else ''}",
        "set data.filter_overlong to true, or data.overlong to left" + ("" if anyway.holds else f": {ends}"),
        ("data.filter_overlong_prompts", "data.truncation"),
        advice=True,
    )


def _server_positions_rule(facts: PlanInputs, length: int) -> Iterator[Rule]:
    """Check a server's length against config.json's maximum, which verl uses without the RoPE scaling factor.

    Without rollout.max_length a server takes that number, and responses end there.
    """
    override = "actor_rollout_ref.model.override_config.max_position_embeddings"
    reach, given = facts.whole(override) or (facts.shape.longest if facts.shape else 0), facts.whole(_LENGTH)
    if not reach:
        return
    yield Rule(
        "model-positions",
        (given or length) <= reach,
        f"max_position_embeddings {reach}, "
        + (f"max_length {given}" if given else f"prompt and response {length} tokens: responses end there"),
        f"set rollout.max_length to {reach} or less" if given else _shorter(facts, reach, length),
        (_LENGTH if given else _RESPONSE,),
        advice=not given,
    )


def _shorter(facts: PlanInputs, reach: int, length: int) -> str:
    """Return the fix for sequences that are too long: a shorter response, or a prompt if that alone is too long."""
    response = facts.whole(_RESPONSE) or 0
    if (left := reach - length + response) > 0:
        return f"set data.response_length to {left} or less"
    return f"set data.prompt_length so that with data.response_length it is {reach} or less"


def _token_limit_rule(facts: PlanInputs, length: int) -> Iterator[Rule]:
    """Check that each token limit of a packed micro batch fits the longest sequence, including padding."""
    train = facts.sizes.train
    ranks, kind = (train.context, "context") if facts.sizes.megatron else (train.sequence, "sequence")
    roles = (UPDATE, OLD_LOG_PROB, REFERENCE_LOG_PROB) if has_reference(facts) else (UPDATE, OLD_LOG_PROB)
    packed = [f"{part}.{limit}" for part, dynamic, limit, _ in roles if facts.on(f"{part}.{dynamic}")]
    limits = {key: tokens for key in packed if (tokens := facts.whole(key)) is not None}
    if not limits:
        return
    key = min(limits, key=lambda one: limits[one])
    yield Rule(
        "token-limit-holds-a-sequence",
        limits[key] * ranks >= length,
        f"{key} {limits[key]} x {kind} parallel {ranks} = {limits[key] * ranks}, prompt and response of "
        f"{length} tokens",
        f"set overrides.{key} to {-(-length // ranks)} or more",
        (key, _RESPONSE),
        certain=not (facts.server_mode and facts.upstream.has(_WITHOUT_PADDING)),
    )


def _engine_length_rules(facts: PlanInputs, length: int) -> Iterator[Rule]:
    longest = facts.whole(_LENGTH) or length
    yield Rule(
        "rollout-max-length",
        longest >= length,
        f"max_length {longest}, prompt and response of {length} tokens",
        f"set rollout.max_length to {length}, or leave it out",
        (_LENGTH, _RESPONSE),
    )
    tokens, chunked = facts.whole(_TOKENS), facts.values.value(_CHUNKED)
    sequences = facts.whole(_SEQUENCES)
    if tokens is not None and sequences is not None:
        yield Rule(
            "sequences-within-step",
            sequences <= tokens,
            f"max_sequences {sequences}, max_batched_tokens {tokens}: each sequence needs a token of a step",
            f"set rollout.max_sequences to {tokens} or less, or rollout.max_batched_tokens to {sequences} or more",
            (_SEQUENCES, _TOKENS),
        )
    if tokens is None or chunked is not True:  # verl checks only then, and the V1 engine chunks in any case
        return
    relaxed = "chunked-prefill-check" in facts.switches
    fix = f"set rollout.max_batched_tokens to {longest} or more"
    if "chunked-prefill-check" in facts.off:
        fix += ", or adaptations.chunked-prefill-check to true"
    yield Rule(
        "prefill-budget",
        tokens >= longest or relaxed,
        f"max_batched_tokens {tokens}, max_length {longest}, with chunked prefill, "
        f"adaptation chunked-prefill-check {'on' if relaxed else 'off or absent'}",
        fix,
        (_TOKENS, _CHUNKED),
    )
