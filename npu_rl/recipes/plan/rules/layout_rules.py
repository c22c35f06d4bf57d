"""Rules on the division of devices, layers and experts."""

from __future__ import annotations

from npu_rl.recipes.plan.rules import pins
from npu_rl.recipes.plan.rules.pins import mindspeed
from npu_rl.recipes.plan.rules.rule import Broken, broken, rule
from npu_rl.recipes.recipe.key_map import recipe_key_of
from npu_rl.recipes.sizing.divisibility import check_sizes
from npu_rl.recipes.sizing.parallelism import DATA_KEY
from npu_rl.recipes.sizing.plan_inputs import ACTOR, ROLLOUT, TRANSFORMER, PlanInputs
from npu_rl.recipes.trainer_code.citations import Place

_MEGATRON = f"{ACTOR}.megatron"
_TENSOR, _PIPELINE, _CONTEXT, _EXPERT, _EXPERT_TENSOR = (
    f"{_MEGATRON}.{name}_parallel_size"
    for name in ("tensor_model", "pipeline_model", "context", "expert_model", "expert_tensor")
)
_ULYSSES, _ROLLOUT_TENSOR = (
    f"{ACTOR}.ulysses_sequence_parallel_size",
    f"{ROLLOUT}.tensor_model_parallel_size",
)
_SEQUENCE, _SHARD = f"{_MEGATRON}.sequence_parallel", f"{ACTOR}.fsdp_config.fsdp_size"
_FIRST, _LAST = (f"{TRANSFORMER}.num_layers_in_{end}_pipeline_stage" for end in ("first", "last"))
_DATA = "data"  # stands for the rollout's data-parallel size, whose key depends on the trainer
_STATE = "megatron/core/parallel_state.py"
_LAYER_LIST = "overrides.actor_rollout_ref.actor.megatron.pipeline_parallel_num_layer_list"
# The sizes that `check_sizes` divides: the keys whose product has to divide what the check names.
_SIZES = {
    "model-parallel-divides-world": (_TENSOR, _PIPELINE, _CONTEXT),
    "fsdp-size-divides-world": (_SHARD,),
    "tensor-parallel-divides-heads": (_TENSOR,),
    "tensor-parallel-divides-kv-heads": (_TENSOR,),
    "pipeline-layers": (_LAST, _PIPELINE),
    "expert-parallel-divides-world": (_EXPERT, _EXPERT_TENSOR, _PIPELINE),
    "expert-parallel-divides-experts": (_EXPERT,),
    "sequence-parallel-divides-world": (_ULYSSES,),
    "sequence-parallel-divides-heads": (_ULYSSES,),
    "sequence-parallel-divides-kv-heads": (_ULYSSES,),
    "rollout-parallel-divides-world": (_ROLLOUT_TENSOR, _DATA),
    "rollout-tensor-parallel-divides-heads": (_ROLLOUT_TENSOR,),
    "rollout-parallel-divides-experts": (_ROLLOUT_TENSOR, _DATA),
}
_WITHOUT_A_MODEL = ("model-parallel-", "fsdp-size-", "sequence-parallel-divides-world", "rollout-parallel-")
_BY_VLLM = "must be divisible by tensor parallel size"
_CODE: dict[str, tuple[Place, ...]] = {
    "model-parallel-divides-world": (Place(_STATE, "is not divisible by", pins.CORE),),
    "tensor-parallel-divides-heads": (Place(pins.CORE_CONFIG, "must be a multiple of", pins.CORE),),
    "tensor-parallel-divides-kv-heads": (Place(pins.CORE_CONFIG, "num_query_groups (", pins.CORE),),
    "expert-parallel-divides-world": (
        Place(_STATE, "expert_tensor_model_pipeline_parallel size", pins.CORE_0_12),
        Place(_STATE, "is not divisible by expert_model_parallel_size", ("core_r0.8.0",)),
    ),
    "sequence-parallel-divides-kv-heads": (
        Place("verl/models/transformers/monkey_patch.py", "or vise versa", pins.VERL),
    ),
    "rollout-tensor-parallel-divides-heads": (
        Place("vllm/config.py", _BY_VLLM, pins.VLLM),
        Place("vllm/config/__init__.py", _BY_VLLM, pins.VLLM_0_10),
        Place("vllm/config/model.py", _BY_VLLM, pins.VLLM_0_18),
    ),
}


def _size_rule(identity: str, keys: tuple[str, ...]) -> None:
    places = (_CODE[identity],) if identity in _CODE else ()

    @rule(*places, certain=identity != "rollout-parallel-divides-experts", identity=identity)
    def judge(facts: PlanInputs) -> Broken:
        if facts.layout is None and not identity.startswith(_WITHOUT_A_MODEL):
            return
        for check in check_sizes(facts.sizes):
            if check.name == identity and not check.ok:
                own = facts.rollout_data_key
                words = [own if key == _DATA else recipe_key_of(key) or key for key in keys]
                whole = " ".join(map(str, reversed(next(iter(check.figures.items())))))
                fix = f"set {' or '.join(words)} so that {'their product' if keys[1:] else 'it'} divides {whole}"
                fix = _layers_fix(facts) if identity == "pipeline-layers" else fix
                data = [
                    key for key in (own.removeprefix("overrides."),) if _DATA in keys and key in facts.given
                ]
                yield broken(check.why, fix, *data, *(key for key in keys if key != _DATA))


def _layers_fix(facts: PlanInputs) -> str:
    if facts.is_cann_trainer:
        return f"set {_LAYER_LIST} to the layers of each stage"
    return (
        "set actor.transformer.num_layers_in_first_pipeline_stage and num_layers_in_last_pipeline_stage so that the "
        "others are equal, or actor.transformer.pipeline_num_transformer_layers to the layers of each stage"
    )


for _name, _keys in _SIZES.items():
    _size_rule(_name, _keys)


@rule()
def _cpu_one_node(facts: PlanInputs) -> Broken:
    if facts.cpu and (nodes := facts.recipe.cluster.nodes) > 1:
        figures = f"device cpu, {nodes} nodes: a recipe for a CPU runs on one machine"
        yield broken(figures, "set cluster.nodes to 1", "trainer.nnodes")


@rule(certain=False)
def _rollout_dp_size(facts: PlanInputs) -> Broken:
    rollout = facts.layout.rollout if facts.layout else None
    by_env = facts.rollout_data_key == "env.VLLM_DP_SIZE" and "VLLM_DP_SIZE" in facts.env
    if not (rollout and by_env and rollout.tensor) or facts.world % rollout.tensor:  # then no size fits
        return
    if (size := rollout.data * rollout.tensor) != facts.world:
        figures = (
            f"VLLM_DP_SIZE {rollout.data} x rollout tensor {rollout.tensor} = {size}, of {facts.world} dies"
        )
        yield broken(figures, f"set env.VLLM_DP_SIZE to {facts.world // rollout.tensor}", "env.VLLM_DP_SIZE")


@rule(certain=False)
def _rollout_experts_match_training(facts: PlanInputs) -> Broken:
    rollout = facts.layout.rollout if facts.layout else None
    experts = facts.shape.experts if facts.shape and facts.megatron and facts.expert_parallel else 0
    if rollout and experts and not facts.server_mode:
        engine, train, key = rollout.tensor * rollout.data, facts.sizes.train.expert, facts.rollout_data_key
        if engine % train:
            figures = f"experts over {engine} dies in the rollout, over {train} in training"
            fix = f"set {key} so that rollout.tensor_parallel times that is a multiple of {train}"
            yield broken(figures, fix, *((DATA_KEY,) if DATA_KEY in facts.given else ()), _EXPERT)


@rule(
    mindspeed("features_manager/pipeline_parallel/unaligned_pineline_feature.py", "args.pipeline_num"),
    certain=False,
)
def _pipeline_layers_agree(facts: PlanInputs) -> Broken:
    """Check that MindSpeed's and Megatron-core's keys describe the same pipeline stages."""
    layers = facts.sizes.model.stage_layers if facts.layout and facts.megatron else ()
    given = [facts.transformer(key.rpartition(".")[2]) for key in (_FIRST, _LAST)]
    if not (facts.transformer("pipeline_num_transformer_layers") and layers) or given == [None, None]:
        return
    wanted = [layers[0] if given[0] is None else given[0], layers[-1] if given[1] is None else given[1]]
    if wanted != [layers[0], layers[-1]] or len(set(layers[1:-1])) > 1:
        figures = (
            f"pipeline_num_transformer_layers {' + '.join(map(str, layers))}; first and last stage {given}"
        )
        fix = "set both to the same layers; num_layers_in_*_pipeline_stage allow only equal stages between"
        yield broken(figures, fix, _LAST, f"{TRANSFORMER}.pipeline_num_transformer_layers")


@rule(
    mindspeed("core/transformer/multi_head_latent_attention/adaptor.py", "MLA is not supported with Tensor")
)
def _mla_tensor_parallel(facts: PlanInputs) -> Broken:
    tensor, latent = facts.sizes.train.tensor, facts.layout and facts.sizes.model.latent_attention
    if facts.megatron and facts.mindspeed and latent and tensor != 1:
        figures = f"tensor parallel size {tensor} in training; MindSpeed's latent attention takes only 1"
        fix = "set actor.parallel.tensor to 1, and spread the model by pipeline and expert"
        yield broken(figures, fix, _TENSOR)


@rule(
    Place("megatron/core/model_parallel_config.py", "without tensor parallelism", pins.CORE),
    Place("megatron/core/transformer/moe/moe_layer.py", "if MoE and tensor parallelism", pins.CORE),
)
def _sequence_parallel_needs_tensor_parallel(facts: PlanInputs) -> Broken:
    tensor, key = facts.sizes.train.tensor, facts.sequence_parallel_key
    if (
        not facts.megatron or key not in facts.given or (key == _SEQUENCE and tensor == 1)
    ):  # verl turns its own off
        return
    on, experts = facts.values.value(key) is True, facts.shape.experts if facts.shape else 0
    if tensor == 1 if on else tensor > 1 and experts:
        needs = "on needs more than 1" if on else "experts with more than 1 need it on"
        figures = f"sequence_parallel {str(on).lower()} with tensor parallel size {tensor}, {experts} experts: {needs}"
        yield broken(figures, "remove sequence_parallel", key, certain=on)


@rule(
    mindspeed("features_manager/context_parallel/context_parallel_feature.py", "parallel_size', 1)) > 1"),
    Place(pins.WORKERS, "    repatch(self.config.actor.megatron.get(", (pins.R1_ZERO, pins.PLUGIN)),
    certain=False,
)
def _context_parallel_agrees(facts: PlanInputs) -> Broken:
    """Check that MindSpeed, which reads only actor.transformer, gets the same context-parallel size as the groups."""
    context, given = facts.sizes.train.context, facts.transformer("context_parallel_size")
    if facts.megatron and facts.mindspeed and (given or 1) != context:
        figures = f"actor.parallel.context {context}, actor.transformer.context_parallel_size {given}, by which alone "
        fix = f"set actor.transformer.context_parallel_size to {context}"
        yield broken(
            f"{figures}MindSpeed replaces attention", fix, f"{TRANSFORMER}.context_parallel_size", _CONTEXT
        )
