"""How dies, layers and experts are divided. Figures for 256 dies are in the tests."""

from __future__ import annotations

from collections.abc import Iterator

from npu_rl.plan.rules.rule import Rule
from npu_rl.sizing.divisibility import Check, check_sizes
from npu_rl.sizing.plan_inputs import ACTOR, ROLLOUT, TRANSFORMER, Facts

_M = f"{ACTOR}.megatron"
_TENSOR, _PIPELINE = f"{_M}.tensor_model_parallel_size", f"{_M}.pipeline_model_parallel_size"
_EXPERT, _INFER = f"{_M}.expert_model_parallel_size", f"{ROLLOUT}.tensor_model_parallel_size"
_LAST, _SEQUENCE = (
    f"{TRANSFORMER}.num_layers_in_last_pipeline_stage",
    f"{ACTOR}.ulysses_sequence_parallel_size",
)
_SEQUENCES = (f"{_M}.sequence_parallel", f"{TRANSFORMER}.sequence_parallel")

# What helps, and the keys, for each of `fit`'s checks.
_CHANGES: dict[str, tuple[str, tuple[str, ...]]] = {
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
    "sequence-parallel-divides-world": ("set actor.parallel.sequence to a divisor of the dies", (_SEQUENCE,)),
    "sequence-parallel-divides-heads": (
        "set actor.parallel.sequence to a divisor of the heads",
        (_SEQUENCE,),
    ),
    "rollout-parallel-divides-world": (
        "set rollout.tensor_parallel or env.VLLM_DP_SIZE so that their product divides the dies",
        (_INFER,),
    ),
    "rollout-tensor-parallel-divides-heads": (
        "set rollout.tensor_parallel to a divisor of the heads",
        (_INFER,),
    ),
    "rollout-parallel-divides-experts": (
        "set rollout.tensor_parallel or env.VLLM_DP_SIZE so that their product divides the experts",
        (_INFER,),
    ),
}
_LIST_OF_LAYERS = (
    "set overrides.actor_rollout_ref.actor.megatron.pipeline_parallel_num_layer_list "
    "to the layers of each stage"
)


def layout_rules(facts: Facts) -> Iterator[Rule]:
    """The rules on sizes; those on the model's only where its shape is known."""
    yield _world(facts)
    if not facts.npu:
        nodes = facts.recipe.cluster.nodes
        yield Rule(
            "cpu-one-node",
            nodes == 1,
            f"device {facts.recipe.device}, {nodes} {'node' if nodes == 1 else 'nodes'}: a recipe for a CPU runs on "
            "one machine",
            "set cluster.nodes to 1",
            ("trainer.nnodes",),
        )
    layout = facts.layout
    if layout is None:
        return
    for check in check_sizes(layout):
        change, keys = _CHANGES[check.name]
        if check.name == "pipeline-layers" and facts.is_cann_trainer:
            change = _LIST_OF_LAYERS
        yield Rule(check.name, check.ok, _figures(check), change, keys)
    yield from _rollout(facts)
    if layout.megatron:
        yield from _stages(facts)
        yield from _tensor(facts)


def _world(facts: Facts) -> Rule:
    nodes, dies = facts.whole("trainer.nnodes"), facts.whole("trainer.n_gpus_per_node")
    cluster = facts.recipe.cluster
    said = (nodes or cluster.nodes) * (dies or cluster.dies)
    return Rule(
        "world-size",
        said == cluster.world,
        f"trainer: {nodes} nodes x {dies} dies = {said}; cluster: {cluster.nodes} x {cluster.dies} = {cluster.world}",
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


def _stages(facts: Facts) -> Iterator[Rule]:
    """MindSpeed and Megatron-core read the stages from different keys; both have to hear the same."""
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


def _rollout(facts: Facts) -> Iterator[Rule]:
    layout, shape = facts.layout, facts.shape
    if layout is None or shape is None or layout.rollout is None:
        return
    tensor, data = layout.rollout.tensor, layout.rollout.data
    if "VLLM_DP_SIZE" in facts.env and tensor and facts.world % tensor == 0:  # else no size would do
        yield Rule(
            "rollout-dp-size",
            data * tensor == facts.world,
            f"VLLM_DP_SIZE {data} x rollout tensor {tensor} = {data * tensor}, of {facts.world} dies",
            f"set env.VLLM_DP_SIZE to {facts.world // tensor}",
            path=("env", "VLLM_DP_SIZE"),
        )
    if layout.megatron and shape.experts and facts.expert_parallel:
        engine, train = tensor * data, layout.train.expert
        yield Rule(
            "rollout-experts-match-training",
            engine % train == 0,
            f"experts over {engine} dies in the rollout, over {train} in training",
            f"set env.VLLM_DP_SIZE so that rollout.tensor_parallel x VLLM_DP_SIZE is a multiple of {train}",
            (_EXPERT,),
        )


def _tensor(facts: Facts) -> Iterator[Rule]:
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
    # the trainer's own default is true, and without effect: only what a person wrote is judged
    said = next((key for key in _SEQUENCES if key in facts.given), None)
    if said is not None:
        given = facts.values.value(said)
        yield Rule(
            "sequence-parallel-needs-tensor-parallel",
            given is (tensor > 1),
            f"sequence_parallel {str(given).lower()} with tensor parallel size {tensor}; the trainer derives it from "
            "the size",
            "remove sequence_parallel",
            (said,),
        )
