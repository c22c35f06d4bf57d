"""Rules on the trees of verl 0.8 and 0.9: what moved there, what is new, and what of older trees no longer holds."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from npu_rl.recipes.judgement.judge import judge
from npu_rl.recipes.memory.memory_by_phase import PhaseName
from npu_rl.recipes.plan.plan import plan_of
from npu_rl.recipes.plan.rules.rule import Rule
from npu_rl.recipes.recipe.load_recipe import load_recipe
from tests.code_trees import lay
from tests.plan.helpers import Broken, broken, model, plan, refused, rule
from tests.plan.test_server_rollout import ACTOR, LIMIT, LOOPS, PACKED, ROLLOUT, SERVERS, script
from tests.support import present

SERVER = "verl/workers/rollout/vllm_rollout/vllm_async_server.py"
ENGINE = "verl/workers/engine/megatron/transformer_impl.py"
CONVERTER = "verl/models/mcore/config_converter.py"
BRIDGED = {**SERVERS, ENGINE: "assert self.engine_config.use_mbridge, 'use_mbridge must be True'\n"}
CALLS_VLLM = {
    **BRIDGED,
    SERVER: """
        args = {
            "max_num_seqs": self.config.max_num_seqs,
            "enable_sleep_mode": self.config.enable_sleep_mode,
        }
        raise ValueError(
            f"max_model_len ({self.config.max_model_len}) should be less than or equal to "
        )
        """,
    "vllm/config/scheduler.py": '"be greater than or equal to max_num_seqs "\n',
    "vllm_ascend/device_allocator/camem.py": '"Expandable segments are not compatible with memory pool. "\n',
}
EXPERTS = {
    **CALLS_VLLM,
    "vllm_ascend/ops/fused_moe/fused_moe.py": (
        "w13_data = self._maybe_pad_weight(layer.w13_weight.data).transpose(1, 2).contiguous()\n"
    ),
    "verl/workers/engine_workers.py": """
        class ActorRolloutRefWorker:
            async def update_weights(self):
                if self.config.rollout.free_cache_engine:
                    await self.rollout.resume(tags=["weights"])
        """,
    "verl/utils/vllm/npu_vllm_patch.py": """
        if True:
            if _VLLM_VERSION >= version.parse("0.13.0") and _VLLM_VERSION <= version.parse("0.14.0"):
                # Disable flash_attn in RotaryEmbedding (NPU) when VLLM >= 0.13
        """,
}
EXPANDABLE = "env.PYTORCH_NPU_ALLOC_CONF=expandable_segments"


SLEEPS = f"{SERVER}:4, vllm_ascend/device_allocator/camem.py:1"
TRANSPOSED = (
    "vllm_ascend/ops/fused_moe/fused_moe.py:1, verl/workers/engine_workers.py:4, "
    "verl/utils/vllm/npu_vllm_patch.py:3"
)
AWAKE = "rollout.free_cache=false"
REFUSED = [
    Broken(
        "sequences-within-step",
        ["rollout.max_sequences=4096"],
        "4096 2048",
        "rollout.max_sequences=2048",
        f"vllm/config/scheduler.py:1, {SERVER}:3",
    ),
    Broken(
        "sleep-mode-expandable-segments",
        [f"{EXPANDABLE}:True", AWAKE],
        "enable_sleep_mode true, PYTORCH_NPU_ALLOC_CONF expandable_segments:True",
        f"{EXPANDABLE}:False",
        SLEEPS,
    ),
    Broken("experts-stay-transposed", [AWAKE], "false 128", "rollout.free_cache=true", TRANSPOSED),
]


@pytest.mark.parametrize("row", REFUSED, ids=[row.name for row in REFUSED])
def test_what_the_engines_refuse_is_reported(tmp_path: Path, row: Broken) -> None:
    broken(row, partial(script, lay(tmp_path / "there", EXPERTS)))
    gone = rule(script(lay(tmp_path / "gone", SERVERS), *row.changes), row.name)
    assert gone.ok and gone.skipped.startswith("not in this tree: v")


def test_experts_are_turned_back_where_verl_does_it(tmp_path: Path) -> None:
    """c0de7379cf, in verl 0.9, and for dense models there is nothing to turn."""
    newer = {"verl/utils/vllm/npu_vllm_patch.py": "_patch_legacy_fused_moe_weight_loader(FusedMoE)\n"}
    assert rule(script(lay(tmp_path / "a", EXPERTS, newer), AWAKE), "experts-stay-transposed").skipped
    dense = ("model.architecture=qwen2.5-32b", "actor.parallel.expert=1", f"{ROLLOUT}expert_parallel_size=1")
    made = script(lay(tmp_path / "b", EXPERTS), AWAKE, *dense)
    assert "experts-stay-transposed" not in {one.id for one in made.rules}


def test_a_server_without_sleep_mode_may_have_expandable_segments(tmp_path: Path) -> None:
    made = script(lay(tmp_path, CALLS_VLLM), f"{EXPANDABLE}:True", f"{ROLLOUT}enable_sleep_mode=false")
    assert "sleep-mode-expandable-segments" not in refused(made)


MOE = "qwen3-30b-a3b"


def test_a_servers_length_is_within_the_number_of_the_models_file(tmp_path: Path) -> None:
    """A RoPE factor doesn't count: verl compares max_position_embeddings as config.json has it."""
    scaled = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    path = model(tmp_path / "model", MOE, max_position_embeddings=32768, rope_scaling=scaled)
    code, short = lay(tmp_path / "code", CALLS_VLLM), "data.response_length=1024"
    found = rule(script(code, path), "model-positions")
    assert not found.ok and found.certain and not found.advice
    assert found.figures == f"max_position_embeddings 32768, max_length 262144 ({SERVER}:7)"
    assert found.fix == "set rollout.max_length to 32768 or less"
    assert rule(script(code, path, "rollout.max_length=32768", short), "model-positions").ok
    left_out = rule(script(code, path, "rollout.max_length=~"), "model-positions")
    assert not left_out.ok and left_out.advice and "tokens: responses end there" in left_out.figures
    assert left_out.fix == "set data.response_length to 31744 or less"
    raised = "overrides.actor_rollout_ref.model.override_config.max_position_embeddings=262144"
    assert rule(script(code, path, raised), "model-positions").ok
    assert "model-positions" not in {one.id for one in script(code).rules}, "releases differ in it"


@pytest.mark.parametrize(
    ("truncation", "dropped", "ok"),
    [("error", False, False), ("right", False, False), ("left", False, True), ("error", True, True)],
)
def test_prompts_are_cut_at_their_left_whatever_the_recipe_says(
    tmp_path: Path, truncation: str, dropped: bool, ok: bool
) -> None:
    cut = {LOOPS: '"Prompt of %d tokens exceeds rollout.prompt_length=%d; left-truncating.",\n'}
    changes = (f"data.overlong={truncation}", f"data.filter_overlong={str(dropped).lower()}")
    found = rule(script(lay(tmp_path, SERVERS, cut), *changes), "overlong-prompts")
    assert found.ok is ok and found.advice
    instead = f"; what is kept is cut at its left, regardless of data.overlong ({LOOPS}:1)"
    assert found.figures.endswith(f"then: {truncation}{instead}")
    assert "ends the run" not in found.fix
    older = rule(script(lay(tmp_path / "older", SERVERS), *changes), "overlong-prompts")
    assert older.ok is (dropped or truncation != "error")
    assert older.fix.endswith("one long prompt ends the run")


@pytest.mark.parametrize("padded", [True, False])
def test_a_limit_of_tokens_is_certain_to_end_a_run_only_where_sequences_are_padded(
    tmp_path: Path, padded: bool
) -> None:
    """Without padding it is compared with the longest sequence that there is."""
    text = "max_token_len must be greater than the sequence length\n"
    effective = {"verl/utils/seqlen_balancing.py": f"max_seq_len = max(seq_len_effective)\n{text}"}
    made = script(lay(tmp_path, SERVERS, LIMIT if padded else effective), *PACKED)
    found = rule(made, "token-limit-holds-a-sequence")
    assert not found.ok and found.certain is padded


PACKAGE = {**BRIDGED, "verl/models/mcore/bridge.py": "from megatron.bridge import AutoBridge\n"}


@pytest.mark.parametrize("parts", [["actor"], ["ref"], ["actor", "ref"]])
def test_megatron_bridge_has_to_be_there(tmp_path: Path, parts: list[str]) -> None:
    """verl 0.9's default, with which the workers of a tree without the package end in an ImportError."""
    name = "megatron-bridge-missing"
    keys = [f"overrides.actor_rollout_ref.{part}.megatron.vanilla_mbridge" for part in parts]
    changes, right = ([f"{key}={value}" for key in keys] for value in ("false", "true"))
    made = script(lay(tmp_path / "without", PACKAGE), *changes)
    found = rule(made, name)
    assert not found.ok and found.advice, "the interpreter may have it"
    assert found.fix == f"set {' and '.join(keys)} to true, which is mbridge"
    assert found.figures.endswith("(verl/models/mcore/bridge.py:1)")
    package = lay(tmp_path / "with", PACKAGE, {"megatron/bridge/__init__.py": ""})
    # without verl's files there is no default
    for code, set_so in ((made.facts.code, right), (made.facts.code, []), (package, changes)):
        assert name not in {one.id for one in script(code, *set_so).rules}


PLATFORM = {
    "vllm/platforms/interface.py": 'f"{quant} quantization is currently not supported in {cls.device_name}."\n',
    "vllm_ascend/platform.py": (
        "supported_quantization: list[str] = [ASCEND_QUANTIZATION_METHOD, COMPRESSED_TENSORS_METHOD]\n"
    ),
}


def test_a_bridge_takes_the_models_file_as_it_was_published(tmp_path: Path) -> None:
    """verl sets num_nextn_predict_layers to 0 and mbridge reads FP8; vLLM may refuse the quantization on NPUs."""
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    path = model(tmp_path / "model", MOE, quantization_config=fp8, num_nextn_predict_layers=1)
    converter = {CONVERTER: "please modify the config.json to remove quantization_config\n"}
    old, unclean, refuses = lay(tmp_path / "0.7", SERVERS, converter), "clean-model-config", "quantized-model"
    assert unclean in refused(script(old, path))
    newer, newest = (
        lay(tmp_path / name, BRIDGED, converter, tree) for name, tree in (("0.8", PLATFORM), ("0.9", {}))
    )
    assert not {unclean, refuses} & set(refused(script(newest, path)))
    assert unclean not in {one.id for one in script(newer, path).rules}
    found = rule(script(newer, path), refuses)
    assert not found.ok and found.certain
    why = "quantization_config of config.json has quant_method fp8, which this vLLM refuses"
    assert found.figures.startswith(why)
    assert refuses not in refused(script(newer, path, f"{ROLLOUT}quantization=ascend"))
    ascend = model(tmp_path / "b", MOE, quantization_config={"quant_method": "ascend"})
    assert rule(script(newer, ascend), refuses).ok


@pytest.mark.parametrize(("relation", "ok"), [("or divisor of", {8, 2}), ("of", {2})])
def test_tensor_ranks_may_share_a_kv_head(tmp_path: Path, relation: str, ok: set[int]) -> None:
    """From Megatron-core 0.16 on (f7dfb99795). The model has 4 KV heads."""
    raised = f'f"num_query_groups ({{self.num_query_groups}}) must be a multiple {relation} "\n'
    code = lay(tmp_path, SERVERS, {"megatron/core/transformer/transformer_config.py": raised})
    made = {size: script(code, f"actor.parallel.tensor={size}") for size in (8, 2, 3)}
    assert {size for size, one in made.items() if rule(one, "tensor-parallel-divides-kv-heads").ok} == ok


GROUPS = ("actor.transformer.moe_router_num_groups=~", "actor.transformer.moe_router_group_topk=~")


@pytest.mark.parametrize("patched", [True, False])
def test_mbridges_own_patch_gives_the_router_its_groups(tmp_path: Path, patched: bool) -> None:
    """verl's converter, which leaves them out, is still there, and nothing calls it."""
    tree = {
        **BRIDGED,
        CONVERTER: "    mla_rope_config = {\n",
        "mbridge/models/deepseek_v3.py": "moe_router_topk=hf_config.num_experts_per_tok,\n",
    }
    changes = (*GROUPS, f"adaptations.router-groups={str(patched).lower()}")
    made = plan(*changes, recipe="today-dapo-deepseek-v3", code=lay(tmp_path, tree))
    found = [one for one in made.rules if one.id == "router-groups" and not one.ok]
    assert bool(found) is not patched
    assert all("(mbridge/models/deepseek_v3.py:1)" in one.figures for one in found)


@pytest.mark.parametrize("name", ["today-dapo-deepseek-v3", "today-grpo-moonlight-16b"])
def test_biases_that_a_bfloat16_counter_would_move_stay(tmp_path: Path, name: str) -> None:
    tree = {
        **BRIDGED,
        "mbridge/models/deepseek_v3.py": "moe_router_bias_update_rate=0.001,\n",
        "megatron/core/transformer/moe/router.py": "                'local_tokens_per_expert',\n",
    }
    key = "actor.transformer.moe_router_bias_update_rate"

    def of(code: Path, *changes: str) -> Rule:
        return rule(plan(*changes, recipe=name, code=code), "router-bias-counts")

    code = lay(tmp_path / "bridged", tree)
    assert of(code).ok and not of(code).skipped, "the bundled recipe"
    left_out = of(code, f"{key}=~")
    assert not left_out.ok and left_out.advice and "left out, which is 0.001: " in left_out.figures
    assert f"set {key} to 0," in left_out.fix
    other = of(lay(tmp_path / "other", BRIDGED), f"{key}=~")
    assert other.ok and other.skipped.startswith("not in this tree: mbridge/")


def test_a_batch_read_at_once_is_not_what_the_newer_trainer_trains_on(tmp_path: Path) -> None:
    reads = {"verl/trainer/ppo/ray_trainer.py": 'self.config.data.get("gen_batch_size"\n'}
    code = lay(tmp_path, SERVERS, reads)
    name, read = "generated-batch-is-trained", "overrides.data.gen_batch_size=8"
    older, newer = script(code, read), script(code, read, "overrides.trainer.use_v1=true")
    assert not rule(older, name).ok and older.facts.generated == 8 * 4
    assert name not in {one.id for one in newer.rules} and newer.facts.generated == 4 * 4


KWARGS, BY_NAME = "overrides.reward.reward_kwargs", "overrides.reward.reward_manager.name=dapo"
ON = (f"{KWARGS}.overlong_buffer_cfg.enable=true", f"{KWARGS}.overlong_buffer_cfg.len=4096")


@pytest.mark.parametrize(
    ("longest", "manager", "fix"),
    [
        (8192, BY_NAME, ""),
        (4095, BY_NAME, "overlong_buffer_cfg.len to a number from 1 to 4095"),
        (None, "reward.manager=dapo", "max_resp_len to 261120"),
        (None, "reward.manager=naive", None),
    ],
)
def test_the_loops_buffer_is_within_its_longest_response(
    tmp_path: Path, longest: int | None, manager: str, fix: str | None
) -> None:
    dapo = "verl/experimental/reward_loop/reward_manager/dapo.py"
    code = lay(tmp_path, SERVERS, {dapo: "assert self.max_resp_len >= self.overlong_buffer_cfg.len, (\n"})
    limit = [f"{KWARGS}.max_resp_len={longest}"] if longest else []
    made = script(code, manager, *ON, *limit)
    found = [one for one in made.rules if one.id == "overlong-buffer-within-response"]
    assert len(found) == (fix is not None)
    for one in found:
        assert one.ok is (fix == "") and one.certain and one.figures.endswith(f"({dapo}:1)")
        assert one.ok or one.fix == f"set {KWARGS}.{fix}"


@pytest.mark.parametrize("responses", [0, -4])
def test_a_step_without_responses_is_one_error(responses: int) -> None:
    """Without a share of a replica, a micro batch counted as large as its limit, which needs 72 GB."""
    recipe = load_recipe("today-gspo-qwen3-30b", [f"{ROLLOUT}n={responses}"])
    assert ("responses-per-prompt", True) in [(one.rule, one.certain) for one in judge(recipe).errors]
    assert "memory-update" in refused(plan_of(recipe)) or responses
    assert judge(load_recipe("today-gspo-qwen3-30b", [f"{ROLLOUT}n=1"])).errors == ()


OWN, BRIDGE = (f"{ACTOR}megatron.{name}" for name in ("sequence_parallel", "vanilla_mbridge"))
DERIVED, NEEDED = "sequence-parallel-derived", "sequence-parallel-needs-tensor-parallel"
DERIVES = {
    **BRIDGED,
    "mbridge/core/llm_bridge.py": '"sequence_parallel": self.mpu.tp_size > 1,\n',
    "megatron/core/model_parallel_config.py": '"Cannot use sequence parallelism without tensor parallelism"\n',
    "megatron/core/transformer/moe/moe_layer.py": '"performance may degrade if MoE and tensor parallelism"\n',
}


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ((f"{OWN}=false",), {DERIVED: True}),
        ((f"{OWN}=true",), {}),
        ((f"{OWN}=false", f"{BRIDGE}=false"), {NEEDED: False}),
        ((f"{OWN}=true", f"{BRIDGE}=false", "actor.parallel.tensor=1"), {}),
        (("actor.transformer.sequence_parallel=false",), {NEEDED: False}),
        (("actor.transformer.sequence_parallel=true", "actor.parallel.tensor=1"), {NEEDED: False}),
    ],
)
def test_sequence_parallelism_is_judged_by_the_value_that_reaches_the_model(
    tmp_path: Path, changes: tuple[str, ...], broken: dict[str, bool]
) -> None:
    """mbridge derives it from the tensor parallel size, Megatron-Bridge takes the actor's key; 128 experts need it."""
    code = lay(tmp_path, DERIVES)
    made, plain = script(code, *changes), script(code)
    assert plain.facts.sizes.train.tensor > 1
    found = {one.id: one.advice for one in made.rules if one.id in (DERIVED, NEEDED) and not one.ok}
    assert found == broken
    if "actor.parallel.tensor=1" not in changes:
        without, usual = (present(present(one.memory).worst(PhaseName.UPDATE)) for one in (made, plain))
        assert (without.total > usual.total) is (NEEDED in broken)
