"""A rollout of vLLM servers, as verl has from 0.7 on: its sizes and its memory."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from npu_rl.recipes.memory.engine_memory import EngineMemory
from npu_rl.recipes.memory.memory_by_phase import PhaseName
from npu_rl.recipes.memory.memory_parts import Part
from npu_rl.recipes.plan.plan import Plan
from tests.code_trees import lay
from tests.plan.helpers import FSDP, HERE, Broken, broken, plan, refused, rule
from tests.support import present

SCRIPT = str(HERE / "published" / "verl-qwen3-235b-256k.yaml")
ROLLOUT, ACTOR = "overrides.actor_rollout_ref.rollout.", "overrides.actor_rollout_ref.actor."
DATA, EXPERTS = f"{ROLLOUT}data_parallel_size", f"{ROLLOUT}expert_parallel_size"
REPLICA, LOOPS = "verl/workers/rollout/replica.py", "verl/experimental/agent_loop/agent_loop.py"
SERVERS = {
    REPLICA: """
        class RolloutReplica:
            def __init__(self):
                self.world_size = (
                    self.config.tensor_model_parallel_size
                    * self.config.data_parallel_size
                    * self.config.pipeline_model_parallel_size
                )
        """,
}
AGENT_LOOP = {
    **SERVERS,
    LOOPS: "chunkes = prompts.chunk(len(self.agent_loop_workers))\n",
    "verl/protocol.py": '"only support equal chunk. Got size of DataProto"\n',
    "verl/trainer/ppo/ray_trainer.py": "x = DataProto.concat([gen_batch_output, gen_baseline_batch])\n",
}


def script(code: Path | None, *changes: str) -> Plan:
    return plan(*changes, recipe=SCRIPT, code=code)


def engine(made: Plan) -> EngineMemory:
    return present(present(made.memory).engine)


@pytest.mark.parametrize("workspace", [True, False], ids=["by the tree", "by the pins"])
def test_a_server_spans_its_data_parallel_ranks(tmp_path: Path, workspace: bool) -> None:
    """By hand: 94 layers, hidden 4096, 128 experts of width 1536, one of them a device of TP4 x DP32."""
    made = script(lay(tmp_path, SERVERS) if workspace else None)
    assert rule(made, "rollout-parallel-divides-world").figures == "256 ranks / 128 = 2 engines"
    counts = engine(made).counts
    assert counts["experts"] == 94 * 3 * 4096 * 1536
    assert counts["attention"] == 94 * 4096 * 128 * (2 * 64 // 4 + 2 * 4 // 4)
    assert not {"memory-weight-sync", "memory-generate", "kv-cache-room"} & set(refused(made))


def test_each_expert_is_divided_where_experts_are_not(tmp_path: Path) -> None:
    """vLLM's layers of experts divide each one over tensor and data ranks then."""
    code = lay(tmp_path, SERVERS)
    counts = engine(script(code)).counts
    assert engine(script(code, f"{EXPERTS}=1")).counts == counts
    alone = script(code, f"{DATA}=1", f"{EXPERTS}=1")
    assert engine(alone).counts["experts"] == 32 * counts["experts"]
    phase = present(present(alone.memory).worst(PhaseName.WEIGHT_SYNC))
    assert phase.parts[Part.ENGINE_WEIGHTS] > 117 * 10**9


def test_what_the_server_overwrites_does_not_count(tmp_path: Path) -> None:
    """The server's own enable_expert_parallel goes over that of engine_kwargs; VLLM_DP_SIZE is not read."""
    changes = ("rollout.engine_arguments.enable_expert_parallel=true", "env.VLLM_DP_SIZE=2")
    made = script(lay(tmp_path, SERVERS), f"{DATA}=1", f"{EXPERTS}=1", *changes)
    assert not made.facts.expert_parallel
    assert present(made.facts.sizes.rollout).data == 1


def test_a_size_that_does_not_fit_is_named_by_the_servers_key(tmp_path: Path) -> None:
    made = script(lay(tmp_path, SERVERS), f"{DATA}=24", f"{EXPERTS}=96")
    found = rule(made, "rollout-parallel-divides-world")
    assert not found.ok and f"rollout.tensor_parallel or {DATA} so that" in found.fix
    (finding,) = [one for one in made.findings() if one.rule == found.id]
    assert finding.path == ("overrides", DATA.removeprefix("overrides."))


@pytest.mark.parametrize(
    ("tree", "change"),
    [({REPLICA: "class RolloutReplica: ...\n"}, ""), (SERVERS, f"{ROLLOUT}mode=sync")],
    ids=["a tree without servers", "verl 0.6's own rollout in the training processes"],
)
def test_other_rollouts_have_no_such_sizes(tmp_path: Path, tree: dict[str, str], change: str) -> None:
    made = script(lay(tmp_path, tree), *filter(None, [change]))
    assert not made.facts.server_mode
    assert present(made.facts.sizes.rollout).data == 1


WORKERS = f"{ROLLOUT}agent.num_workers=8"
DIVIDED = "batch-divisible-by-agent-workers"


@pytest.mark.parametrize(
    ("prompts", "responses", "changes", "sequences", "each"),
    [
        (4, 4, (), 16, " = 2"),
        (15, 4, (), 60, ""),
        (18, 2, (), 36, ""),
        (16, 2, ("overrides.data.gen_batch_size=18",), 36, ""),
        (4, 4, ("algorithm.estimator=remax",), 20, ""),
    ],
)
def test_responses_are_split_over_agent_loop_workers(
    tmp_path: Path, prompts: int, responses: int, changes: tuple[str, ...], sequences: int, each: str
) -> None:
    sizes = (f"data.batch={prompts}", f"actor.mini_batch={prompts}", f"rollout.responses={responses}")
    made = script(lay(tmp_path, AGENT_LOOP), WORKERS, *sizes, *changes)
    found = rule(made, DIVIDED)
    assert found.figures.startswith(f"{sequences} responses over 8 agent loop workers{each} ({LOOPS}:1, ")
    assert found.ok is bool(each) and found.certain
    assert "batch-divisible-by-rollout-dp" not in {one.id for one in made.rules}
    assert "rollout-experts-match-training" not in {one.id for one in made.rules}
    if not found.ok:
        fewer = found.fix.rpartition("or ")[2].removeprefix("overrides.").replace(" to ", "=")
        assert rule(script(made.facts.code, *sizes, *changes, f"overrides.{fewer}"), DIVIDED).ok


@pytest.mark.parametrize(
    "change",
    [
        "overrides.trainer.use_v1=true",
        "env.VERL_AUTO_PADDING=true",
        f"{ROLLOUT}agent.agent_loop_manager_class=mine.Manager",
    ],
)
def test_an_uneven_split_is_not_judged(tmp_path: Path, change: str) -> None:
    made = script(lay(tmp_path, AGENT_LOOP), WORKERS, "data.batch=3", change)
    assert DIVIDED not in {one.id for one in made.rules}


def test_a_slip_of_the_finger_takes_no_time(tmp_path: Path) -> None:
    """No walk over as many workers as somebody has written."""
    made = script(lay(tmp_path, AGENT_LOOP), f"{ROLLOUT}agent.num_workers={10**15}")
    assert not rule(made, DIVIDED).ok


def test_the_split_is_that_of_the_tree(tmp_path: Path) -> None:
    found = rule(script(lay(tmp_path, SERVERS), WORKERS, "data.batch=3"), DIVIDED)
    assert found.ok and found.skipped.startswith("not in this tree: verl/experimental/agent_loop")


def test_where_the_tree_has_none_of_the_places_only_the_function_is_cited(tmp_path: Path) -> None:
    small = script(lay(tmp_path, SERVERS), f"{DATA}=1", f"{EXPERTS}=1", "rollout.memory_share=0.1")
    assert "not one sequence fits (check_enough_kv_cache_memory)" in rule(small, "kv-cache-room").figures


@pytest.mark.parametrize(("dynamic", "refuses"), [(False, True), (True, False)])
def test_the_batch_is_checked_where_newer_trainers_check_it(
    tmp_path: Path, dynamic: bool, refuses: bool
) -> None:
    """verl/utils/config.py asks for whole micro batches on each replica, unless they are packed by tokens."""
    config = "minimal_bsz = megatron_dp\nassert real_train_batch_size % minimal_bsz == 0\n"
    ends = (f"actor.transformer.num_layers_in_{end}_pipeline_stage=11" for end in ("first", "last"))
    sizes = ("actor.parallel.pipeline=8", "data.batch=5", "rollout.responses=5", *ends)
    packed = f"{ACTOR}use_dynamic_bsz={str(dynamic).lower()}"
    made = script(lay(tmp_path, SERVERS | {"verl/utils/config.py": config}), *sizes, packed)
    assert ("batch-divisible-by-dp" in refused(made)) is refuses
    if refuses:
        found = rule(made, "batch-divisible-by-dp")
        assert "2 data-parallel replicas x micro batch 1 = 2 (verl/utils/config.py:2)" in found.figures


ASSERTED = {
    **SERVERS,
    "verl/trainer/ppo/rollout_corr_helper.py": (
        'raise ValueError("rollout_rs_threshold must be provided for rejection sampling.")\n'
    ),
    "verl/utils/tensordict_utils.py": "assert tensordict.batch_size[0] % mini_batch_size == 0, f'{x}'\n",
    "verl/workers/engine_workers.py": """
        mini_batch_size_per_gpu = mini_batch_size // self.engine.get_data_parallel_size()
        assert self.config.actor.use_dynamic_bsz == self.config.rollout.log_prob_use_dynamic_bsz
        """,
    "verl/workers/engine/megatron/transformer_impl.py": """assert self.engine_config.use_mbridge, 'use_mbridge'
        virtual_pipeline_model_parallel_size=self.engine_config.virtual_pipeline_model_parallel_size,
        """,
    "megatron/core/parallel_state.py": (
        '"pipeline-model-parallel size should be greater than 1 with interleaved schedule"\n'
    ),
    "verl/trainer/ppo/ray_trainer.py": 'assert self.hybrid_engine, "Currently, only support hybrid engine"\n',
    LOOPS: """
        for i in range(num_workers):
        chunkes = prompts.chunk(len(self.agent_loop_workers))
        assert agent_name in _agent_loop_registry, (
        """,
    "verl/experimental/agent_loop/single_turn_agent_loop.py": '@register("single_turn_agent")\n',
    "verl/experimental/agent_loop/tool_agent_loop.py": '@register("tool_agent")\n',
    "verl/checkpoint_engine/base.py": """
        @CheckpointEngineRegistry.register("naive")
        class ColocatedCheckpointEngine: ...
        def get(cls, backend):
            return cls._registry[backend]
        """,
    "verl/trainer/ppo/v1/trainer_base.py": """
        def get_trainer_cls(name):
            return TRAINER_REGISTRY[name]
        """,
    "verl/trainer/ppo/v1/trainer_sync.py": '@register_trainer("sync")\n',
    "verl/trainer/ppo/v1/trainer_separate_async.py": '@register_trainer("separate_async")\n',
    "verl/checkpoint_engine/hccl_checkpoint_engine.py": '@CheckpointEngineRegistry.register("nccl")\n',
}
V1, MODE = "overrides.trainer.use_v1=true", "overrides.trainer.v1.trainer_mode"
HYBRID = "overrides.actor_rollout_ref.hybrid_engine"
CORRECTION = "overrides.algorithm.rollout_correction."
REJECTS = f"{CORRECTION}rollout_rs=token_k3"
ONE_STAGE = "actor.parallel.pipeline=1"
CHUNKS = f"{ACTOR}megatron.virtual_pipeline_model_parallel_size"
AGENTS, LOOP = f"{ROLLOUT}agent.num_workers", f"{ROLLOUT}agent.default_agent_loop"
PACKED_LOG_PROB = f"{ROLLOUT}log_prob_use_dynamic_bsz"
TOKENS = (f"{ACTOR}use_dynamic_bsz=true",)
BACKEND, MBRIDGE = f"{ROLLOUT}checkpoint_engine.backend", f"{ACTOR}megatron.use_mbridge"


TRANSFORMER = "verl/workers/engine/megatron/transformer_impl.py"
PIPELINES = f"megatron/core/parallel_state.py:1, {TRANSFORMER}:2"
REFUSED = [
    Broken(
        "dynamic-batches-agree",
        [*TOKENS, f"{PACKED_LOG_PROB}=false"],
        "true false",
        f"{PACKED_LOG_PROB}=true",
        "verl/workers/engine_workers.py:3",
    ),
    Broken(
        "checkpoint-engine-backend",
        [f"{BACKEND}=hcclx"],
        "backend hcclx; registered are naive, nccl (",
        f"{BACKEND}=naive",
        "verl/checkpoint_engine/base.py:5",
    ),
    Broken("megatron-needs-mbridge", [f"{MBRIDGE}=false"], "false", f"{MBRIDGE}=true", f"{TRANSFORMER}:1"),
    Broken(
        "trainer-mode",
        [V1, f"{MODE}=syncc"],
        "trainer_mode syncc; registered are separate_async, sync (",
        f"{MODE}=sync",
        "verl/trainer/ppo/v1/trainer_base.py:3",
    ),
    Broken(
        "hybrid-engine", [f"{HYBRID}=false"], "false", f"{HYBRID}=true", "verl/trainer/ppo/ray_trainer.py:1"
    ),
    Broken("agent-loop-workers", [f"{AGENTS}=0"], "0", f"{AGENTS}=1", f"{LOOPS}:2, {LOOPS}:3"),
    Broken(
        "rejection-needs-threshold",
        [REJECTS, f"{ROLLOUT}calculate_log_probs=true"],
        "rollout_rs token_k3 without",
        f"{CORRECTION}rollout_rs_threshold=2.0",
        "verl/trainer/ppo/rollout_corr_helper.py:1",
    ),
    Broken("virtual-pipeline-needs-stages", [ONE_STAGE, f"{CHUNKS}=2"], "2 1", f"{CHUNKS}=null", PIPELINES),
]


@pytest.mark.parametrize("row", REFUSED, ids=[row.name for row in REFUSED])
def test_newer_trainers_refuse_what_they_assert(tmp_path: Path, row: Broken) -> None:
    assert broken(row, partial(script, lay(tmp_path / "there", ASSERTED))).certain
    gone = [one for one in script(lay(tmp_path / "gone", SERVERS), *row.changes).rules if one.id == row.name]
    assert all(one.ok and one.skipped for one in gone)


def test_the_default_agent_loop_is_one_of_the_trees(tmp_path: Path) -> None:
    """It can be overruled: with a column agent_name in the data it is never used."""
    code = lay(tmp_path, ASSERTED)
    found = rule(script(code, f"{LOOP}=singel"), "agent-loop-registered")
    assert not found.ok and not found.certain and found.fix == f"set {LOOP} to single_turn_agent"
    assert found.figures == (
        f"agent.default_agent_loop singel; registered are single_turn_agent, tool_agent ({LOOPS}:4)"
    )
    assert rule(script(code, f"{LOOP}=tool_agent"), "agent-loop-registered").ok
    for own in ("agent_loop_config_path=a.yaml", "agent_loop_manager_class=mine.Manager"):
        made = script(code, f"{LOOP}=singel", f"{ROLLOUT}agent.{own}")
        assert "agent-loop-registered" not in {one.id for one in made.rules}


def test_what_others_make_or_never_read_is_not_judged(tmp_path: Path) -> None:
    code = lay(tmp_path, ASSERTED)
    assert "hybrid-engine" not in refused(script(code, V1, f"{HYBRID}=false"))
    manager = f"{ROLLOUT}agent.agent_loop_manager_class=mine.Manager"
    assert "agent-loop-workers" not in refused(script(code, f"{AGENTS}=0", manager))


@pytest.mark.parametrize(
    ("tree", "mini", "v1", "broken"),
    [
        (ASSERTED, 3, False, True),
        (ASSERTED, 2, False, False),
        (ASSERTED, 3, True, False),
        (ASSERTED | {"verl/workers/fsdp_workers.py": "pass\n"}, 3, False, False),
        (SERVERS, 3, False, False),
    ],
    ids=["the engine's workers", "a divisor", "a trainer that fills up", "verl 0.7's workers", "neither"],
)
def test_whole_mini_batches(tmp_path: Path, tree: dict[str, str], mini: int, v1: bool, broken: bool) -> None:
    """Each replica's share of a step is cut into mini batches, and asserted to have no rest."""
    changes = (f"actor.mini_batch={mini}", f"overrides.trainer.use_v1={str(v1).lower()}")
    made = script(lay(tmp_path, tree), *TOKENS, *changes)
    assert ("batch-divisible-by-mini-batch" in refused(made)) is broken


def test_a_model_of_unknown_size_is_no_reason_to_leave_out_the_devices(tmp_path: Path) -> None:
    """Qwen3-8B and Qwen3-Next have no name in recipes; what needs no model is judged all the same."""
    unknown = ("model.architecture=~", "model.path=/no/config.json")
    code = lay(tmp_path, ASSERTED | LIMIT)
    right = script(code, *unknown)
    assert right.facts.layout is None and right.memory is None and refused(right) == []
    for change, name in (
        (f"{DATA}=3", "rollout-parallel-divides-world"),
        ("actor.mini_batch=3", "batch-divisible-by-mini-batch"),
    ):
        assert name in refused(script(code, *unknown, f"{EXPERTS}=1", change)), name
    assert "token-limit-holds-a-sequence" in refused(script(code, *unknown, *PACKED))


@pytest.mark.parametrize(
    "own",
    [f"{ROLLOUT}checkpoint_engine.custom_backend_module", "overrides.actor_rollout_ref.model.external_lib"],
)
def test_a_backend_of_ones_own_is_not_looked_up(tmp_path: Path, own: str) -> None:
    made = script(lay(tmp_path, ASSERTED), f"{BACKEND}=mine", f"{own}=my.module")
    assert "checkpoint-engine-backend" not in {one.id for one in made.rules}


PACKED = (*TOKENS, f"{ACTOR}ppo_max_token_len_per_gpu=512")
COPIED = {
    "verl/workers/config/actor.py": """
        class FSDPActorConfig:
            def __post_init__(self):
                if self.ulysses_sequence_parallel_size > 1:
                    self.fsdp_config.ulysses_sequence_parallel_size = self.ulysses_sequence_parallel_size
        """
}
LIMIT = {"verl/utils/seqlen_balancing.py": "max_token_len must be greater than the sequence length\n"}
ULYSSES = f"{ACTOR}fsdp_config.ulysses_sequence_parallel_size"


@pytest.mark.parametrize(
    ("tree", "key", "ranks"),
    [
        (COPIED, ULYSSES, 4),
        (COPIED, "actor.parallel.sequence", 4),
        (COPIED | {"verl/workers/fsdp_workers.py": "pass\n"}, ULYSSES, 1),
        ({}, ULYSSES, 1),
    ],
    ids=["the engine's key", "the actor's", "the workers of verl 0.7", "an older tree"],
)
def test_ulysses_size_is_the_one_that_the_engine_reads(
    tmp_path: Path, tree: dict[str, str], key: str, ranks: int
) -> None:
    """As a script of verl 0.9 for Qwen3-32B writes it, whose limit of tokens is a rank's share of a sequence."""
    made = plan(*PACKED, f"{key}=4", recipe=FSDP, code=lay(tmp_path, LIMIT, tree))
    assert made.facts.sizes.train.sequence == ranks
    assert ("token-limit-holds-a-sequence" in refused(made)) is (ranks == 1)


SLEEPS = {
    **SERVERS,
    "verl/workers/rollout/vllm_rollout/vllm_async_server.py": """
        class vLLMHttpServer:
            async def _sleep_hybrid(self):
                if self.lora_as_adapter or is_torch_npu_available(check_device=False):
                    sleep_level = 1
        """,
}


@pytest.mark.parametrize(
    ("tree", "changes", "dies"),
    [
        (SLEEPS, (), 16),
        (SLEEPS, ("rollout.free_cache=false",), 0),
        (SLEEPS, (f"{ROLLOUT}enable_sleep_mode=false",), 0),
        (SERVERS, (), 0),
    ],
)
def test_a_sleeping_engines_weights_wait_on_the_host(
    tmp_path: Path, tree: dict[str, str], changes: tuple[str, ...], dies: int
) -> None:
    """Level 1, which verl forces on NPUs: 7.6 GB of each of a node's 16 devices."""
    made = script(lay(tmp_path, tree), *changes)
    memory, weights = present(made.memory), 2 * sum(engine(made).counts.values())
    assert 7.6e9 < weights < 7.7e9
    assert memory.host.get(Part.ENGINE_WEIGHTS, 0) == dies * weights
    assert any("wait on the host (level 1, verl/workers/" in text for text in memory.assumed) is bool(dies)


def test_the_engines_heads_are_checked_where_newer_vllm_checks_them(tmp_path: Path) -> None:
    """64 heads over 128 ranks: vLLM's ModelConfig raises (vllm/config/model.py@v0.18.0)."""
    config = {"vllm/config/model.py": '"must be divisible by tensor parallel size"\n'}
    sizes = ("rollout.tensor_parallel=128", f"{DATA}=1", f"{EXPERTS}=1")
    found = rule(script(lay(tmp_path, SERVERS | config), *sizes), "rollout-tensor-parallel-divides-heads")
    assert not found.ok and found.certain and "(vllm/config/model.py:1)" in found.figures
