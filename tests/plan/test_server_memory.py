"""Memory where vLLM servers generate: two processes on a die, and what newer verl, Megatron and MindSpeed free."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.memory.device_overhead import hccl_groups
from npu_rl.recipes.memory.memory_by_phase import Memory, Phase, PhaseName
from npu_rl.recipes.memory.memory_parts import Part, total
from tests.code_trees import lay
from tests.plan.test_server_rollout import DATA, EXPERTS, ROLLOUT, SERVERS, script
from tests.support import present

UTILS = "verl/utils/megatron_utils.py"
WORKER = {
    "vllm_ascend/worker/worker.py": """
        class NPUWorker:
            def _init_device(self):
                self.init_snapshot = MemorySnapshot()
            def determine_available_memory(self) -> int: ...
        """
}
BUCKETS = {
    "verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py": """
        class BucketedWeightSender:
            def _init_buffer(self):
                buffer = torch.empty(self.bucket_size, dtype=torch.uint8, device="npu:0")
        """
}
HYBRID = {
    "megatron/core/optimizer/__init__.py": "optimizer = HybridDeviceOptimizer(\n",
    UTILS: "_opt.optimizer._move_new_state_to_right_device()\n",
}
CONTEXT, GB = 10**9, 10**9


def memory(tmp_path: Path, tree: dict[str, str], *changes: str) -> Memory:
    return present(script(lay(tmp_path, tree), *changes).memory)


def worst(made: Memory, name: PhaseName) -> Phase:
    return present(made.worst(name))


def test_a_die_and_a_host_have_two_processes_for_each_die(tmp_path: Path) -> None:
    """Training's and the engine's, from the start of a run to its end."""
    servers = memory(tmp_path / "servers", SERVERS)
    one = memory(tmp_path / "none", {"verl/workers/rollout/replica.py": "class RolloutReplica: ...\n"})
    for made, processes in ((servers, 2), (one, 1)):
        assert {phase.parts[Part.CONTEXT] for phase in made.phases} == {processes * CONTEXT}
        assert made.host[Part.PROCESSES] == 16 * processes * 3 * GB
    assert any("a die has two processes: training's and the engine's" in text for text in servers.assumed)
    assert not any("a die has two" in text for text in one.assumed)


def test_an_engine_that_counts_only_itself_has_training_beside_its_share(tmp_path: Path) -> None:
    """Its KV cache gives way to its own weights, its forward pass and its buffers, and to nothing of training's."""
    changes = ("offload.reference=false", "rollout.memory_share=0.5")
    made = memory(tmp_path / "itself", {**SERVERS, **WORKER}, *changes)
    all_of_it = memory(tmp_path / "all", SERVERS, *changes)
    engine, other = present(made.engine), present(all_of_it.engine)
    assert engine.left == 0 and other.left > 0
    assert Part.CONTEXT not in engine.profiled and engine.outside[Part.CONTEXT] == 2 * CONTEXT
    buffers = worst(made, PhaseName.UPDATE).parts[Part.HCCL]
    assert engine.profiled[Part.HCCL] + engine.outside[Part.HCCL] == buffers
    assert engine.cache.size == 32 * GB - total(engine.own) - total(engine.profiled)
    assert engine.cache.size > other.cache.size + other.left
    phase = worst(made, PhaseName.GENERATE)
    assert phase.total == 32 * GB + total(engine.outside) + phase.parts[Part.REFERENCE_WEIGHTS]
    assert phase.total > worst(all_of_it, PhaseName.GENERATE).total
    assert any("(MemorySnapshot, vllm_ascend/worker/worker.py:4)" in text for text in made.assumed)
    assert not any("MemorySnapshot" in text for text in all_of_it.assumed)


@pytest.mark.parametrize(
    ("changes", "mb"),
    [
        ((), 2048),
        ((f"{ROLLOUT}checkpoint_engine.update_weights_bucket_megabytes=512",), 512),
        ((f"{ROLLOUT}checkpoint_engine.backend=naive",), 2048),
        ((f"{ROLLOUT}checkpoint_engine.backend=hccl",), 0),
        ((f"{ROLLOUT}mode=sync",), 0),
    ],
)
def test_weights_reach_the_engine_in_a_bucket(tmp_path: Path, changes: tuple[str, ...], mb: int) -> None:
    """MiB (`<< 20`, bucketed_weight_transfer.py:95@7aed6b2), on the die during the weight sync alone."""
    made = memory(tmp_path, {**SERVERS, **BUCKETS}, *changes)
    for phase in made.phases:
        wanted = mb * 2**20 if phase.name is PhaseName.WEIGHT_SYNC else 0
        assert phase.parts.get(Part.BUCKET, 0) == wanted
    assert any("(update_weights_bucket_megabytes, verl/workers/" in text for text in made.assumed) is bool(mb)
    other = worst(memory(tmp_path / "other", SERVERS, *changes), PhaseName.WEIGHT_SYNC)
    assert Part.BUCKET not in other.parts


def test_layers_of_experts_ask_for_a_communicator_of_mc2(tmp_path: Path) -> None:
    """From vllm-ascend 0.18 on whether experts are divided or not (moe_comm_method.py:58@v0.18.0)."""
    method = "_MoECommMethods[MoECommType.MC2] = MC2CommImpl(moe_config)\n"
    always = {**SERVERS, "vllm_ascend/ops/fused_moe/moe_comm_method.py": method}
    for tree, changes, there in (
        (always, (f"{EXPERTS}=1",), True),
        (always, (f"{EXPERTS}=1", f"{DATA}=1", "rollout.tensor_parallel=1"), False),
        (SERVERS, (f"{EXPERTS}=1",), False),
    ):
        facts = script(lay(tmp_path / str(len(tree)), tree), *changes).facts
        assert ("rollout_mc2" in hccl_groups(facts, facts.sizes)[0]) is there


OPTIMIZER = "overrides.actor_rollout_ref.actor.optim.override_optimizer_config"


@pytest.mark.parametrize(
    ("config", "on_die", "on_host"),
    [
        ("", 0, 16),
        # The distributed optimizer makes an fp32 copy on the die, which waits on the host with the rest.
        ("use_precision_aware_optimizer: false", 4, 20),
        (
            "optimizer_offload_fraction: 0.5",
            0,
            14,
        ),  # measured with 0.4, where the code leaves 60 % on the die
        ("optimizer_offload_fraction: 0", 12, 12),  # Megatron-core's default
        ("optimizer_cpu_offload: false", 12, 12),
    ],
)
def test_megatrons_own_optimizer_on_the_host(tmp_path: Path, config: str, on_die: int, on_host: int) -> None:
    """Bytes a value: fp32 copy, two moments, and on the host a pinned gradient (hybrid_optimizer.py@core_v0.16.1)."""
    tree, change = {**SERVERS, **HYBRID}, f"{OPTIMIZER}={{{config}}}"
    made = memory(tmp_path, tree, change)
    each = made.stages[0].states / 12
    update = next(phase for phase in made.phases if phase.name is PhaseName.UPDATE and phase.stage == 0)
    assert update.parts.get(Part.OPTIMIZER, 0) == pytest.approx(on_die * each, abs=2)
    assert made.stages[0].on_host[Part.OPTIMIZER] == pytest.approx(on_host * each, abs=2)


@pytest.mark.parametrize("missing", HYBRID)
def test_states_enter_the_die_where_verl_moves_them(tmp_path: Path, missing: str) -> None:
    """As verl 55e3c5b does whatever the optimizer is; and where there is no such optimizer."""
    tree = {**SERVERS, **{name: text for name, text in HYBRID.items() if name != missing}}
    made = memory(tmp_path, tree)
    assert worst(made, PhaseName.UPDATE).parts[Part.OPTIMIZER] == made.stages[1].states
    assert not any("HybridDeviceOptimizer" in text for text in made.assumed)


def test_an_engine_of_verl_keeps_one_pinned_copy_of_the_weights(tmp_path: Path) -> None:
    """verl/utils/megatron_utils.py:487@7aed6b2 says why: a new copy at each offload ended runs."""
    again = {UTILS: "buffer.param_data.cpu_data = buffer.param_data.data.cpu().pin_memory()\n"}
    assert Part.PINNED_COPIES in memory(tmp_path / "again", {**SERVERS, **again}).host
    assert Part.PINNED_COPIES not in memory(tmp_path / "once", {**SERVERS, UTILS: ""}).host


MOE = "mindspeed/core/transformer/moe/moe_feature/overlap/moe_common.py"
ZERO_MEMORY = {**SERVERS, MOE: "moe_zero_memory = self.config.moe_zero_memory\n"}
OVERLAP = "actor.transformer.moe_alltoall_overlap_comm=true"
LEVEL = "actor.transformer.moe_zero_memory=level"


def activations(code: Path, *changes: str) -> int:
    """Of stage 1, nothing of which is recomputed."""
    made = present(script(code, "actor.transformer.recompute_granularity=none", *changes).memory)
    found = next(phase for phase in made.phases if phase.name is PhaseName.UPDATE and phase.stage == 1)
    return found.parts[Part.ACTIVATIONS]


def test_mindspeed_frees_activations_of_experts(tmp_path: Path) -> None:
    """By hand, 256k tokens over 8 context and 2 tensor ranks, stage 1 of 16: 6 layers of 8 experts a token.

    Level 0 keeps gate and up; level 1 nothing of the experts, and computes one layer's again in its backward pass.
    """
    code = lay(tmp_path, ZERO_MEMORY)
    rows = 262144 // 8 // 2 * 8
    whole, gate_and_up = 2 * rows * (2 * 4096 + 3 * 1536), 2 * rows * 2 * 1536
    off, zero, one = (
        activations(code, *given) for given in ((), (OVERLAP, f"{LEVEL}0"), (OVERLAP, f"{LEVEL}1"))
    )
    kept = 6 * 15  # layers of the micro batches in flight
    assert off - zero == (kept - 1) * (whole - gate_and_up)
    assert off - one == (kept - 1) * whole
