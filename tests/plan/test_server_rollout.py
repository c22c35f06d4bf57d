"""A rollout of vLLM servers, as verl has from 0.7 on: its sizes and its memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.memory.engine_memory import EngineMemory
from npu_rl.recipes.memory.memory_by_phase import PhaseName
from npu_rl.recipes.memory.memory_parts import Part
from npu_rl.recipes.plan.plan import Plan
from tests.code_trees import lay
from tests.plan.helpers import FSDP, SCRIPT, broken, plan, refused, rule
from tests.support import present

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


def test_a_size_that_does_not_fit_is_named_by_the_servers_key(tmp_path: Path) -> None:
    made = script(lay(tmp_path, SERVERS), f"{DATA}=24", f"{EXPERTS}=96")
    found = rule(made, "rollout-parallel-divides-world")
    assert f"rollout.tensor_parallel or {DATA} so that" in found.fix
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
    ("prompts", "responses", "changes", "sequences", "even"),
    [
        (4, 4, (), 16, True),
        (15, 4, (), 60, False),
        (16, 2, ("overrides.data.gen_batch_size=18",), 36, False),
        (4, 4, ("algorithm.estimator=remax",), 20, False),
        (3, 4, ("overrides.trainer.use_v1=true",), 12, True),
        (3, 4, ("env.VERL_AUTO_PADDING=true",), 12, True),
        (3, 4, (f"{ROLLOUT}agent.agent_loop_manager_class=mine.Manager",), 12, True),
    ],
)
def test_responses_are_split_over_agent_loop_workers(
    tmp_path: Path, prompts: int, responses: int, changes: tuple[str, ...], sequences: int, even: bool
) -> None:
    sizes = (f"data.batch={prompts}", f"actor.mini_batch={prompts}", f"rollout.responses={responses}")
    made = script(lay(tmp_path, AGENT_LOOP), WORKERS, *sizes, *changes)
    assert (DIVIDED in broken(made)) is not even
    assert not {"batch-divisible-by-rollout-dp", "rollout-experts-match-training"} & {*broken(made)}
    if not even:
        found = rule(made, DIVIDED)
        assert found.figures.startswith(f"{sequences} responses over 8 agent loop workers ({LOOPS}:1, ")
        fewer = found.fix.rpartition("or ")[2].replace(" to ", "=")
        assert DIVIDED not in broken(script(made.facts.code, *sizes, *changes, fewer)) and found.certain


TOKENS = (f"{ACTOR}use_dynamic_bsz=true",)


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
    assert found.certain and "(vllm/config/model.py:1)" in found.figures
