"""Rules on the division of devices, layers and experts."""

from __future__ import annotations

from npu_rl.recipes.plan.rules.pins import (
    BRIDGED,
    CONVERTER,
    CORE,
    CORE_0_12,
    MINDSPEED,
    PLUGIN,
    R1_ZERO,
    VERL,
    VLLM,
    VLLM_0_10,
    VLLM_0_18,
    WORKERS,
)
from npu_rl.recipes.plan.rules.rule import Outcome, Outcomes, rule
from npu_rl.recipes.sizing.divisibility import Check, check_sizes
from npu_rl.recipes.sizing.parallelism import DATA_KEY, SERVER_DATA_KEY
from npu_rl.recipes.sizing.plan_inputs import ACTOR, ROLLOUT, TRANSFORMER, PlanInputs
from npu_rl.recipes.trainer_code.citations import Place

_MEGATRON = f"{ACTOR}.megatron"
_TENSOR, _PIPELINE = f"{_MEGATRON}.tensor_model_parallel_size", f"{_MEGATRON}.pipeline_model_parallel_size"
_EXPERT, _ROLLOUT_TENSOR = f"{_MEGATRON}.expert_model_parallel_size", f"{ROLLOUT}.tensor_model_parallel_size"
_STAGES = f"{TRANSFORMER}.pipeline_num_transformer_layers"
_LAST = f"{TRANSFORMER}.num_layers_in_last_pipeline_stage"
_ULYSSES, _SEQUENCE = f"{ACTOR}.ulysses_sequence_parallel_size", f"{_MEGATRON}.sequence_parallel"
_STATE, _CONFIG = "megatron/core/parallel_state.py", "megatron/core/transformer/transformer_config.py"
_LAYER_LIST_FIX = (
    "set overrides.actor_rollout_ref.actor.megatron.pipeline_parallel_num_layer_list "
    "to the layers of each stage"
)


@rule("world-size")
def _world_size(facts: PlanInputs) -> Outcomes:
    nodes, dies = facts.whole("trainer.nnodes"), facts.whole("trainer.n_gpus_per_node")
    cluster = facts.recipe.cluster
    world = (nodes or cluster.nodes) * (dies or cluster.dies)
    yield Outcome(
        world == cluster.world,
        f"trainer: {nodes} nodes x {dies} dies = {world}; cluster: {cluster.nodes} x {cluster.dies} = {cluster.world}",
        "remove the override, and set cluster.nodes and cluster.dies",
        ("trainer.nnodes", "trainer.n_gpus_per_node"),
    )


@rule("cpu-one-node", only=("cpu",))
def _cpu_one_node(facts: PlanInputs) -> Outcomes:
    nodes = facts.recipe.cluster.nodes
    figures = (
        f"device cpu, {nodes} {'node' if nodes == 1 else 'nodes'}: a recipe for a CPU runs on one machine"
    )
    yield Outcome(nodes == 1, figures, "set cluster.nodes to 1", ("trainer.nnodes",))


def _size_rule(
    identity: str,
    fix: str,
    keys: tuple[str, ...],
    *places: Place | tuple[Place, ...],
    certain: bool = True,
    of_model: bool = True,
) -> None:
    """Register a rule on one of `check_sizes`; {data} in its fix is the recipe's key of the rollout's data size.

    Args:
        of_model: Whether it divides what a model has, so that it needs a known shape.
    """

    @rule(identity, *places, certain=certain)
    def judge(facts: PlanInputs) -> Outcomes:
        if of_model and facts.layout is None:
            return
        for check in check_sizes(facts.sizes):
            if check.name == identity:
                own = _LAYER_LIST_FIX if identity == "pipeline-layers" and facts.is_cann_trainer else fix
                found = (*_data_keys(facts), *keys) if "{data}" in fix else keys
                yield Outcome(check.ok, _figures(check), own.replace("{data}", facts.rollout_data_key), found)


_size_rule(
    "model-parallel-divides-world",
    "set actor.parallel.tensor, actor.parallel.pipeline and actor.parallel.context so that their product divides "
    "the dies",
    (_TENSOR, _PIPELINE),
    Place(_STATE, "is not divisible by", CORE),
    of_model=False,
)
_size_rule(
    "fsdp-size-divides-world",
    "set actor.parallel.shard to a divisor of the dies, or to -1 to shard over all of them",
    (f"{ACTOR}.fsdp_config.fsdp_size",),
    of_model=False,
)
_size_rule(
    "tensor-parallel-divides-heads",
    "set actor.parallel.tensor to a divisor of the heads",
    (_TENSOR,),
    Place(_CONFIG, "must be a multiple of", CORE),
)
_size_rule(
    "tensor-parallel-divides-kv-heads",
    "set actor.parallel.tensor to a divisor of them",
    (_TENSOR,),
    Place(_CONFIG, "num_query_groups (", CORE),
)
_size_rule(
    "pipeline-layers",
    "set actor.transformer.num_layers_in_first_pipeline_stage and num_layers_in_last_pipeline_stage so that the "
    "others are equal, or actor.transformer.pipeline_num_transformer_layers to the layers of each stage",
    (_LAST, _STAGES, _PIPELINE),
)
_size_rule(
    "expert-parallel-divides-world",
    "set actor.parallel.expert, actor.parallel.expert_tensor or actor.parallel.pipeline so that their product "
    "divides the dies",
    (_EXPERT,),
    (
        Place(_STATE, "expert_tensor_model_pipeline_parallel size", CORE_0_12),
        Place(_STATE, "is not divisible by expert_model_parallel_size", ("core_r0.8.0",)),
    ),
)
_size_rule(
    "expert-parallel-divides-experts", "set actor.parallel.expert to a divisor of the experts", (_EXPERT,)
)
_size_rule(
    "sequence-parallel-divides-world",
    "set actor.parallel.sequence to a divisor of the dies",
    (_ULYSSES,),
    of_model=False,
)
_size_rule(
    "sequence-parallel-divides-heads", "set actor.parallel.sequence to a divisor of the heads", (_ULYSSES,)
)
_size_rule(
    "sequence-parallel-divides-kv-heads",
    "set actor.parallel.sequence to a divisor of the KV heads, or to a multiple of them that divides the heads",
    (_ULYSSES,),
    Place("verl/models/transformers/monkey_patch.py", "or vise versa", VERL),
)
_size_rule(
    "rollout-parallel-divides-world",
    "set rollout.tensor_parallel or {data} so that their product divides the dies",
    (_ROLLOUT_TENSOR,),
    of_model=False,
)
_size_rule(
    "rollout-tensor-parallel-divides-heads",
    "set rollout.tensor_parallel to a divisor of the heads",
    (_ROLLOUT_TENSOR,),
    (
        Place("vllm/config.py", "must be divisible by tensor parallel size", VLLM),
        Place("vllm/config/__init__.py", "must be divisible by tensor parallel size", VLLM_0_10),
        Place("vllm/config/model.py", "must be divisible by tensor parallel size", VLLM_0_18),
    ),
)
_size_rule(
    "rollout-parallel-divides-experts",
    "set rollout.tensor_parallel or {data} so that their product divides the experts",
    (_ROLLOUT_TENSOR,),
    certain=False,
)


def _data_keys(facts: PlanInputs) -> tuple[str, ...]:
    """Return the trainer's key for the rollout's data-parallel size, if the recipe sets it."""
    return tuple(key for key in (DATA_KEY, SERVER_DATA_KEY) if key in facts.given)


def _figures(check: Check) -> str:
    if not check.ok:
        return check.why
    if "given" in check.figures:
        layers = check.figures["given"]
        return f"{' + '.join(map(str, layers))} = {sum(layers)} layers on {len(layers)} stages"
    (what, whole), (_, by), (share, each) = check.figures.items()
    return f"{whole} {what} / {by} = {each} {share}"


@rule("rollout-dp-size", certain=False, only=("layout",))
def _rollout_dp_size(facts: PlanInputs) -> Outcomes:
    rollout = facts.sizes.rollout
    by_env = facts.rollout_data_key == "env.VLLM_DP_SIZE" and "VLLM_DP_SIZE" in facts.env
    if rollout and by_env and rollout.tensor and facts.world % rollout.tensor == 0:  # else no size fits
        yield Outcome(
            rollout.data * rollout.tensor == facts.world,
            f"VLLM_DP_SIZE {rollout.data} x rollout tensor {rollout.tensor} = {rollout.data * rollout.tensor}, of "
            f"{facts.world} dies",
            f"set env.VLLM_DP_SIZE to {facts.world // rollout.tensor}",
            path=("env", "VLLM_DP_SIZE"),
        )


@rule("rollout-experts-match-training", certain=False, only=("layout", "megatron", "expert_parallel"))
def _rollout_experts_match(facts: PlanInputs) -> Outcomes:
    rollout, experts = facts.sizes.rollout, facts.shape.experts if facts.shape else 0
    if rollout and experts and not facts.server_mode:
        engine, train = rollout.tensor * rollout.data, facts.sizes.train.expert
        size = facts.rollout_data_key.rpartition(".")[2]
        yield Outcome(
            engine % train == 0,
            f"experts over {engine} dies in the rollout, over {train} in training",
            f"set {facts.rollout_data_key} so that rollout.tensor_parallel x {size} is a multiple of {train}",
            (*_data_keys(facts), _EXPERT),
        )


@rule(
    "pipeline-layers-agree",
    Place(
        "mindspeed/features_manager/pipeline_parallel/unaligned_pineline_feature.py",
        "args.pipeline_num_transformer_layers",
        MINDSPEED,
    ),
    certain=False,
    only=("layout", "megatron"),
)
def _pipeline_layers_agree(facts: PlanInputs) -> Outcomes:
    """Check that MindSpeed's and Megatron-core's keys describe the same pipeline stages."""
    first = facts.transformer("num_layers_in_first_pipeline_stage")
    last = facts.transformer("num_layers_in_last_pipeline_stage")
    layers = facts.sizes.model.stage_layers
    both = facts.transformer("pipeline_num_transformer_layers") and layers
    if not both or (first, last) == (None, None):
        return
    ends = (layers[0] if first is None else first, layers[-1] if last is None else last)
    yield Outcome(
        ends == (layers[0], layers[-1]) and len(set(layers[1:-1])) <= 1,
        f"pipeline_num_transformer_layers {' + '.join(map(str, layers))}; first stage {first}, last stage {last}",
        "set both of them to the same layers: num_layers_in_first_pipeline_stage and num_layers_in_last_pipeline_stage "
        "allow only equal stages between",
        (_LAST, _STAGES),
    )


@rule(
    "mla-tensor-parallel",
    Place(
        "mindspeed/core/transformer/multi_head_latent_attention/adaptor.py",
        "MLA is not supported with Tensor Parallelism yet",
        MINDSPEED,
    ),
    only=("layout", "megatron", "mindspeed"),
)
def _mla_tensor_parallel(facts: PlanInputs) -> Outcomes:
    tensor = facts.sizes.train.tensor
    if facts.sizes.model.latent_attention:
        yield Outcome(
            tensor == 1,
            f"tensor parallel size {tensor} in training; MindSpeed's multi-head latent attention takes only 1",
            "set actor.parallel.tensor to 1, and spread the model by pipeline and expert",
            (_TENSOR,),
        )


@rule(
    "sequence-parallel-derived",
    (
        Place("mbridge/core/llm_bridge.py", '"sequence_parallel": self.mpu.tp_size > 1', BRIDGED),
        Place(CONVERTER, '"sequence_parallel": mpu.get_tensor_model_parallel_world_size() > 1', VERL),
    ),
    certain=False,
    only=("layout", "megatron"),
)
def _sequence_parallel_derived(facts: PlanInputs) -> Outcomes:
    """Advise on a value that isn't passed. The default of the actor's own key is true: only a recipe's is judged."""
    tensor = facts.sizes.train.tensor
    if _SEQUENCE in facts.given and facts.sequence_parallel_key != _SEQUENCE:
        written = facts.values.value(_SEQUENCE)
        yield Outcome(
            written is (tensor > 1),
            f"sequence_parallel {str(written).lower()} with tensor parallel size {tensor}; the trainer derives it from "
            "the size",
            "remove sequence_parallel",
            (_SEQUENCE,),
            advice=True,
        )


@rule(
    "sequence-parallel-needs-tensor-parallel",
    Place("megatron/core/model_parallel_config.py", "without tensor parallelism", CORE),
    Place("megatron/core/transformer/moe/moe_layer.py", "if MoE and tensor parallelism", CORE),
    only=("layout", "megatron"),
)
def _sequence_parallel_needs_tensor(facts: PlanInputs) -> Outcomes:
    tensor, reaches = facts.sizes.train.tensor, facts.sequence_parallel_key
    if reaches not in facts.given or (reaches == _SEQUENCE and tensor == 1):  # verl turns its own off there
        return
    on, experts = facts.values.value(reaches) is True, facts.shape.experts if facts.shape else 0
    yield Outcome(
        tensor > 1 if on else tensor == 1 or not experts,
        f"sequence_parallel {str(on).lower()} with tensor parallel size {tensor}, {experts} experts: on needs more "
        "than 1, and experts with more than 1 need it on",
        "remove sequence_parallel",
        (reaches,),
        certain=on,
    )


@rule(
    "context-parallel-agrees",
    Place(
        "mindspeed/features_manager/context_parallel/context_parallel_feature.py",
        "if int(getattr(args, 'context_parallel_size', 1)) > 1",
        MINDSPEED,
    ),
    Place(WORKERS, "    repatch(self.config.actor.megatron.get(", (R1_ZERO, PLUGIN)),
    certain=False,
    only=("layout", "megatron", "mindspeed"),
)
def _context_parallel_agrees(facts: PlanInputs) -> Outcomes:
    """Check that MindSpeed, which reads only actor.transformer, gets the same context-parallel size as the groups."""
    context, given = facts.sizes.train.context, facts.transformer("context_parallel_size")
    if context != 1 or given is not None:
        yield Outcome(
            (given or 1) == context,
            f"actor.parallel.context {context}, actor.transformer.context_parallel_size {given}: MindSpeed replaces "
            "attention by that of context parallel ranks only by the second",
            f"set actor.transformer.context_parallel_size to {context}",
            (f"{TRANSFORMER}.context_parallel_size", f"{_MEGATRON}.context_parallel_size"),
        )
