"""Rules on the division of devices, layers and experts."""

from __future__ import annotations

from collections.abc import Iterator

from npu_rl.recipes.plan.rules.rule import Rule
from npu_rl.recipes.sizing.divisibility import Check, check_sizes
from npu_rl.recipes.sizing.parallelism import DATA_KEY, SERVER_DATA_KEY
from npu_rl.recipes.sizing.plan_inputs import ACTOR, ROLLOUT, TRANSFORMER, PlanInputs

_MEGATRON = f"{ACTOR}.megatron"
_TENSOR, _PIPELINE = f"{_MEGATRON}.tensor_model_parallel_size", f"{_MEGATRON}.pipeline_model_parallel_size"
_EXPERT, _ROLLOUT_TENSOR = f"{_MEGATRON}.expert_model_parallel_size", f"{ROLLOUT}.tensor_model_parallel_size"
_LAST, _ULYSSES = (
    f"{TRANSFORMER}.num_layers_in_last_pipeline_stage",
    f"{ACTOR}.ulysses_sequence_parallel_size",
)

# Checks of `fit` that divide the devices alone, and not what a model has.
_WITHOUT_MODEL = (
    "model-parallel-divides-world",
    "fsdp-size-divides-world",
    "sequence-parallel-divides-world",
    "rollout-parallel-divides-world",
)
# Name of each check of `fit` -> the fix, and the keys that it changes.
_FIXES: dict[str, tuple[str, tuple[str, ...]]] = {
    "model-parallel-divides-world": (
        "set actor.parallel.tensor, actor.parallel.pipeline and actor.parallel.context so that their product divides "
        "the dies",
        (_TENSOR, _PIPELINE),
    ),
    "fsdp-size-divides-world": (
        "set actor.parallel.shard to a divisor of the dies, or to -1 to shard over all of them",
        (f"{ACTOR}.fsdp_config.fsdp_size",),
    ),
    "tensor-parallel-divides-heads": ("set actor.parallel.tensor to a divisor of the heads", (_TENSOR,)),
    "tensor-parallel-divides-kv-heads": ("set actor.parallel.tensor to a divisor of them", (_TENSOR,)),
    "pipeline-layers": (
        "set actor.transformer.num_layers_in_first_pipeline_stage and num_layers_in_last_pipeline_stage so that the "
        "others are equal, or actor.transformer.pipeline_num_transformer_layers to the layers of each stage",
        (_LAST, f"{TRANSFORMER}.pipeline_num_transformer_layers", _PIPELINE),
    ),
    "expert-parallel-divides-world": (
        "set actor.parallel.expert, actor.parallel.expert_tensor or actor.parallel.pipeline so that their product "
        "divides the dies",
        (_EXPERT,),
    ),
    "expert-parallel-divides-experts": ("set actor.parallel.expert to a divisor of the experts", (_EXPERT,)),
    "sequence-parallel-divides-world": ("set actor.parallel.sequence to a divisor of the dies", (_ULYSSES,)),
    "sequence-parallel-divides-heads": (
        "set actor.parallel.sequence to a divisor of the heads",
        (_ULYSSES,),
    ),
    "sequence-parallel-divides-kv-heads": (
        "set actor.parallel.sequence to a divisor of the KV heads, or to a multiple of them that divides the heads",
        (_ULYSSES,),
    ),
    "rollout-parallel-divides-world": (
        "set rollout.tensor_parallel or {data} so that their product divides the dies",
        (_ROLLOUT_TENSOR,),
    ),
    "rollout-tensor-parallel-divides-heads": (
        "set rollout.tensor_parallel to a divisor of the heads",
        (_ROLLOUT_TENSOR,),
    ),
    "rollout-parallel-divides-experts": (
        "set rollout.tensor_parallel or {data} so that their product divides the experts",
        (_ROLLOUT_TENSOR,),
    ),
}
_LAYER_LIST_FIX = (
    "set overrides.actor_rollout_ref.actor.megatron.pipeline_parallel_num_layer_list "
    "to the layers of each stage"
)


def parallelism_rules(facts: PlanInputs) -> Iterator[Rule]:
    """Yield the rules on parallel sizes. Rules on the model's sizes need a known shape."""
    yield _world_size_rule(facts)
    if facts.cpu:
        nodes = facts.recipe.cluster.nodes
        yield Rule(
            "cpu-one-node",
            nodes == 1,
            f"device {facts.recipe.device}, {nodes} {'node' if nodes == 1 else 'nodes'}: a recipe for a CPU runs on "
            "one machine",
            "set cluster.nodes to 1",
            ("trainer.nnodes",),
        )
    layout = facts.sizes
    for check in check_sizes(layout):
        if facts.layout is None and check.name not in _WITHOUT_MODEL:
            continue
        fix, keys = _FIXES[check.name]
        if check.name == "pipeline-layers" and facts.is_cann_trainer:
            fix = _LAYER_LIST_FIX
        if "{data}" in fix:
            fix, keys = fix.replace("{data}", facts.rollout_data_key), (*_data_keys(facts), *keys)
        yield Rule(check.name, check.ok, _figures(check), fix, keys)
    if facts.layout is None:
        return
    yield from _rollout_rules(facts)
    if layout.megatron:
        yield from _pipeline_rule(facts)
        yield from _tensor_parallel_rules(facts)
        yield from _context_parallel_rule(facts)


def _data_keys(facts: PlanInputs) -> tuple[str, ...]:
    """Return the trainer's key for the rollout's data-parallel size, if the recipe sets it."""
    return tuple(key for key in (DATA_KEY, SERVER_DATA_KEY) if key in facts.given)


def _world_size_rule(facts: PlanInputs) -> Rule:
    nodes, dies = facts.whole("trainer.nnodes"), facts.whole("trainer.n_gpus_per_node")
    cluster = facts.recipe.cluster
    world = (nodes or cluster.nodes) * (dies or cluster.dies)
    return Rule(
        "world-size",
        world == cluster.world,
        f"trainer: {nodes} nodes x {dies} dies = {world}; cluster: {cluster.nodes} x {cluster.dies} = {cluster.world}",
        "remove the override, and set cluster.nodes and cluster.dies",
        ("trainer.nnodes", "trainer.n_gpus_per_node"),
    )


def _figures(check: Check) -> str:
    if not check.ok:
        return check.why
    if "given" in check.figures:
        layers = check.figures["given"]
        return f"{' + '.join(map(str, layers))} = {sum(layers)} layers on {len(layers)} stages"
    (what, whole), (_, by), (share, each) = check.figures.items()
    return f"{whole} {what} / {by} = {each} {share}"


def _pipeline_rule(facts: PlanInputs) -> Iterator[Rule]:
    """Check that MindSpeed's and Megatron-core's keys describe the same pipeline stages."""
    assert facts.layout is not None
    first = facts.transformer("num_layers_in_first_pipeline_stage")
    last = facts.transformer("num_layers_in_last_pipeline_stage")
    layers = facts.layout.model.stage_layers
    if (
        not facts.transformer("pipeline_num_transformer_layers")
        or not layers
        or (first, last) == (None, None)
    ):
        return
    ends = (layers[0] if first is None else first, layers[-1] if last is None else last)
    yield Rule(
        "pipeline-layers-agree",
        ends == (layers[0], layers[-1]) and len(set(layers[1:-1])) <= 1,
        f"pipeline_num_transformer_layers {' + '.join(map(str, layers))}; first stage {first}, last stage {last}",
        "set both of them to the same layers: num_layers_in_first_pipeline_stage and num_layers_in_last_pipeline_stage "
        "allow only equal stages between",
        (_LAST, f"{TRANSFORMER}.pipeline_num_transformer_layers"),
    )


def _rollout_rules(facts: PlanInputs) -> Iterator[Rule]:
    layout, shape = facts.layout, facts.shape
    if layout is None or shape is None or layout.rollout is None:
        return
    tensor, data = layout.rollout.tensor, layout.rollout.data
    by_env = facts.rollout_data_key == "env.VLLM_DP_SIZE"
    if by_env and "VLLM_DP_SIZE" in facts.env and tensor and facts.world % tensor == 0:  # else no size fits
        yield Rule(
            "rollout-dp-size",
            data * tensor == facts.world,
            f"VLLM_DP_SIZE {data} x rollout tensor {tensor} = {data * tensor}, of {facts.world} dies",
            f"set env.VLLM_DP_SIZE to {facts.world // tensor}",
            path=("env", "VLLM_DP_SIZE"),
        )
    if layout.megatron and shape.experts and facts.expert_parallel and not facts.server_mode:
        engine, train = tensor * data, layout.train.expert
        size = facts.rollout_data_key.rpartition(".")[2]
        yield Rule(
            "rollout-experts-match-training",
            engine % train == 0,
            f"experts over {engine} dies in the rollout, over {train} in training",
            f"set {facts.rollout_data_key} so that rollout.tensor_parallel x {size} is a multiple of {train}",
            (*_data_keys(facts), _EXPERT),
        )


def _tensor_parallel_rules(facts: PlanInputs) -> Iterator[Rule]:
    assert facts.layout is not None
    tensor = facts.layout.train.tensor
    if facts.layout.model.latent_attention and facts.mindspeed:
        yield Rule(
            "mla-tensor-parallel",
            tensor == 1,
            f"tensor parallel size {tensor} in training; MindSpeed's multi-head latent attention takes only 1",
            "set actor.parallel.tensor to 1, and spread the model by pipeline and expert",
            (_TENSOR,),
        )
    yield from _sequence_parallel_rules(facts, tensor)


def _sequence_parallel_rules(facts: PlanInputs, tensor: int) -> Iterator[Rule]:
    """Check that a value that reaches Megatron-core fits the tensor-parallel size; advise on one that isn't passed.

    The default of the actor's own key is true, so only a value in the recipe is judged.
    """
    own, reaches = f"{_MEGATRON}.sequence_parallel", facts.sequence_parallel_key
    if own in facts.given and reaches != own:
        written = facts.values.value(own)
        yield Rule(
            "sequence-parallel-derived",
            written is (tensor > 1),
            f"sequence_parallel {str(written).lower()} with tensor parallel size {tensor}; the trainer derives it from "
            "the size",
            "remove sequence_parallel",
            (own,),
            advice=True,
        )
    if reaches not in facts.given or (reaches == own and tensor == 1):  # verl turns its own off there
        return
    on, experts = facts.values.value(reaches) is True, facts.shape.experts if facts.shape else 0
    yield Rule(
        "sequence-parallel-needs-tensor-parallel",
        tensor > 1 if on else tensor == 1 or not experts,
        f"sequence_parallel {str(on).lower()} with tensor parallel size {tensor}, {experts} experts: on needs more "
        "than 1, and experts with more than 1 need it on",
        "remove sequence_parallel",
        (reaches,),
        certain=on,
    )


def _context_parallel_rule(facts: PlanInputs) -> Iterator[Rule]:
    """Check that MindSpeed, which reads only actor.transformer, gets the same context-parallel size as the groups."""
    assert facts.layout is not None
    context, given = facts.layout.train.context, facts.transformer("context_parallel_size")
    if not facts.mindspeed or (context == 1 and given is None):
        return
    yield Rule(
        "context-parallel-agrees",
        (given or 1) == context,
        f"actor.parallel.context {context}, actor.transformer.context_parallel_size {given}: MindSpeed replaces "
        "attention by that of context parallel ranks only by the second",
        f"set actor.transformer.context_parallel_size to {context}",
        (f"{TRANSFORMER}.context_parallel_size", f"{_MEGATRON}.context_parallel_size"),
    )
