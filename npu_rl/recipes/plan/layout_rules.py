"""How dies, layers and experts are divided. Figures for 256 dies are in the tests."""

from __future__ import annotations

from collections.abc import Iterator

from npu_rl.recipes.plan.facts import ACTOR, ROLLOUT, TRANSFORMER, Facts
from npu_rl.recipes.plan.fit import Check, fit
from npu_rl.recipes.plan.rule import Rule

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
        "change tensor, pipeline or context until their product divides it",
        (_TENSOR, _PIPELINE),
    ),
    "tensor-parallel-divides-heads": ("take a tensor size that divides the heads", (_TENSOR,)),
    "tensor-parallel-divides-kv-heads": ("take a tensor size that divides them", (_TENSOR,)),
    "pipeline-layers": (
        "give the layers of the first and last stage (num_layers_in_first_pipeline_stage, ..._last_...) so that the "
        "others are equal, or the layers of each (pipeline_num_transformer_layers)",
        (_LAST, f"{TRANSFORMER}.pipeline_num_transformer_layers", _PIPELINE),
    ),
    "expert-parallel-divides-world": (
        "change expert, expert_tensor or pipeline until their product divides it",
        (_EXPERT,),
    ),
    "expert-parallel-divides-experts": ("take an expert size that divides the experts", (_EXPERT,)),
    "sequence-parallel-divides-world": ("take a sequence size that divides the dies", (_SEQUENCE,)),
    "sequence-parallel-divides-heads": ("take a sequence size that divides the heads", (_SEQUENCE,)),
    "rollout-parallel-divides-world": ("change rollout.tensor_parallel or VLLM_DP_SIZE", (_INFER,)),
    "rollout-tensor-parallel-divides-heads": (
        "take a rollout.tensor_parallel that divides the heads",
        (_INFER,),
    ),
    "rollout-parallel-divides-experts": ("change rollout.tensor_parallel or VLLM_DP_SIZE", (_INFER,)),
}


def layout_rules(facts: Facts) -> Iterator[Rule]:
    """The rules on sizes; those on the model's only where its shape is known."""
    yield _world(facts)
    layout = facts.layout
    if layout is None:
        return
    for check in fit(layout):
        change, keys = _CHANGES.get(check.name, ("", (f"{ACTOR}.fsdp_config.fsdp_size",)))
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
        "say it as cluster.nodes and cluster.dies, not in overrides",
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
        "give both readers the same layers: num_layers_in_first and _last_pipeline_stage know only equal ones between",
        (_LAST, f"{TRANSFORMER}.pipeline_num_transformer_layers"),
    )


def _rollout(facts: Facts) -> Iterator[Rule]:
    layout, shape = facts.layout, facts.shape
    if layout is None or shape is None or layout.rollout is None:
        return
    tensor, data = layout.rollout.tensor, layout.rollout.data
    if "VLLM_DP_SIZE" in facts.env:
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
            "take a rollout size (tensor x VLLM_DP_SIZE) that is a multiple of actor.parallel.expert",
            (_EXPERT,),
        )


def _tensor(facts: Facts) -> Iterator[Rule]:
    assert facts.layout is not None
    tensor = facts.layout.train.tensor
    if facts.layout.model.latent_attention and facts.mindspeed:
        yield Rule(
            "mla-tensor-parallel",
            tensor == 1,
            f"tensor parallel size {tensor} in training; MindSpeed's multi-head latent attention takes only 1 "
            "(mindspeed/core/transformer/multi_head_latent_attention/adaptor.py:35@7ff818c4)",
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
            "the size (verl/models/mcore/config_converter.py@55e3c5b)",
            "leave sequence_parallel out",
            (said,),
        )
