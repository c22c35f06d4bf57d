"""Rules on the trees of verl 0.8 and 0.9: what moved there, what is new, and what of older trees no longer holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.memory.memory_by_phase import PhaseName
from tests.code_trees import lay
from tests.plan.helpers import broken, model, plan, refused, rule, skipped
from tests.plan.test_rules import tree_of
from tests.plan.test_server_rollout import ACTOR, LOOPS, ROLLOUT, SERVERS, script
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
AWAKE = "rollout.free_cache=false"


def test_experts_are_turned_back_where_verl_does_it(tmp_path: Path) -> None:
    """c0de7379cf, in verl 0.9, and for dense models there is nothing to turn."""
    name, dense = "experts-stay-transposed", ("model.architecture=qwen2.5-32b", "actor.parallel.expert=1")
    assert name not in broken(script(tree_of(tmp_path / "a", SERVERS), AWAKE, *dense))
    newer = tree_of(tmp_path / "b", SERVERS, without=frozenset({"verl/utils/vllm/npu_vllm_patch.py"}))
    lay(newer, {"verl/utils/vllm/npu_vllm_patch.py": "_patch_legacy_fused_moe_weight_loader(FusedMoE)\n"})
    assert name in skipped(script(newer, AWAKE))


MOE = "qwen3-30b-a3b"


def test_a_servers_length_is_within_the_number_of_the_models_file(tmp_path: Path) -> None:
    """A RoPE factor doesn't count: verl compares max_position_embeddings as config.json has it."""
    scaled = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    path = model(tmp_path / "model", MOE, max_position_embeddings=32768, rope_scaling=scaled)
    code, short = lay(tmp_path / "code", CALLS_VLLM), "data.response_length=1024"
    found = rule(script(code, path), "model-positions")
    assert found.certain and found.fix == "set rollout.max_length to 32768 or less"
    assert (
        f"max_position_embeddings 32768, where responses end, max_length 262144 ({SERVER}:7)" in found.figures
    )
    left_out = rule(script(code, path, "rollout.max_length=~"), "model-positions")
    assert left_out.advice and left_out.fix == "set data.response_length to 31744 or less"
    raised = "overrides.actor_rollout_ref.model.override_config.max_position_embeddings=262144"
    for right in ((path, "rollout.max_length=32768", short), (path, raised), ()):
        assert "model-positions" not in broken(script(code, *right)), right


@pytest.mark.parametrize(
    ("truncation", "dropped", "ok"),
    [("error", False, False), ("right", False, False), ("left", False, True), ("error", True, True)],
)
def test_prompts_are_cut_at_their_left_whatever_the_recipe_says(
    tmp_path: Path, truncation: str, dropped: bool, ok: bool
) -> None:
    cut = {LOOPS: '"Prompt of %d tokens exceeds rollout.prompt_length=%d; left-truncating.",\n'}
    changes, name = (
        (f"data.overlong={truncation}", f"data.filter_overlong={str(dropped).lower()}"),
        "overlong-prompts",
    )
    found = broken(script(lay(tmp_path, SERVERS, cut), *changes)).get(name)
    assert (found is None) is ok
    if found is not None:
        assert found.advice and found.figures.endswith(f"regardless of data.overlong ({LOOPS}:1)")
    older = broken(script(lay(tmp_path / "older", SERVERS), *changes)).get(name)
    assert (older is None) is (dropped or truncation != "error")
    assert older is None or "ends the run" in older.figures


PACKAGE = {**BRIDGED, "verl/models/mcore/bridge.py": "from megatron.bridge import AutoBridge\n"}


@pytest.mark.parametrize("parts", [["actor"], ["ref"], ["actor", "ref"]])
def test_megatron_bridge_has_to_be_there(tmp_path: Path, parts: list[str]) -> None:
    """verl 0.9's default, with which the workers of a tree without the package end in an ImportError."""
    name = "megatron-bridge-missing"
    keys = [f"overrides.actor_rollout_ref.{part}.megatron.vanilla_mbridge" for part in parts]
    changes = [f"{key}=false" for key in keys]
    made = script(lay(tmp_path / "without", PACKAGE), *changes)
    assert rule(made, name).fix == f"set {' and '.join(keys)} to true, which is mbridge"
    package = lay(tmp_path / "with", PACKAGE, {"megatron/bridge/__init__.py": ""})
    for code, set_so in (
        (made.facts.code, []),
        (package, changes),
    ):  # without verl's files there is no default
        assert name not in broken(script(code, *set_so))


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
    found = broken(script(newer, path))
    assert unclean not in found and found[refuses].certain and "quant_method fp8" in found[refuses].figures
    assert refuses not in refused(script(newer, path, f"{ROLLOUT}quantization=ascend"))
    ascend = model(tmp_path / "b", MOE, quantization_config={"quant_method": "ascend"})
    assert refuses not in broken(script(newer, ascend))


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
    assert ("router-groups" in broken(made)) is not patched


@pytest.mark.parametrize("name", ["today-dapo-deepseek-v3", "today-grpo-moonlight-16b"])
def test_biases_that_a_bfloat16_counter_would_move_stay(tmp_path: Path, name: str) -> None:
    tree = {
        **BRIDGED,
        "mbridge/models/deepseek_v3.py": "moe_router_bias_update_rate=0.001,\n",
        "megatron/core/transformer/moe/router.py": "                'local_tokens_per_expert',\n",
    }
    key = "actor.transformer.moe_router_bias_update_rate"

    rule_name, code = "router-bias-counts", lay(tmp_path / "bridged", tree)
    assert rule_name not in broken(plan(recipe=name, code=code)), "the bundled recipe"
    left_out = rule(plan(f"{key}=~", recipe=name, code=code), rule_name)
    assert (
        left_out.advice
        and "left out, which is 0.001: " in left_out.figures
        and f"set {key} to 0," in left_out.fix
    )
    other = plan(f"{key}=~", recipe=name, code=lay(tmp_path / "other", BRIDGED))
    assert skipped(other)[rule_name].startswith("not in this tree: mbridge/")


OWN, BRIDGE = (f"{ACTOR}megatron.{name}" for name in ("sequence_parallel", "vanilla_mbridge"))
NEEDED = "sequence-parallel-needs-tensor-parallel"
REFUSES = {
    **BRIDGED,
    "megatron/core/model_parallel_config.py": '"Cannot use sequence parallelism without tensor parallelism"\n',
    "megatron/core/transformer/moe/moe_layer.py": '"performance may degrade if MoE and tensor parallelism"\n',
}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ((f"{OWN}=false",), False),
        ((f"{OWN}=false", f"{BRIDGE}=false"), True),
        ((f"{OWN}=true", f"{BRIDGE}=false", "actor.parallel.tensor=1"), False),
        (("actor.transformer.sequence_parallel=false",), True),
        (("actor.transformer.sequence_parallel=true", "actor.parallel.tensor=1"), True),
    ],
)
def test_sequence_parallelism_is_judged_by_the_value_that_reaches_the_model(
    tmp_path: Path, changes: tuple[str, ...], found: bool
) -> None:
    """mbridge derives it from the tensor parallel size, Megatron-Bridge takes the actor's key; 128 experts need it."""
    code = lay(tmp_path, REFUSES)
    made, plain = script(code, *changes), script(code)
    assert plain.facts.sizes.train.tensor > 1
    assert (NEEDED in broken(made)) is found
    if "actor.parallel.tensor=1" not in changes:
        without, usual = (present(present(one.memory).worst(PhaseName.UPDATE)) for one in (made, plain))
        assert (without.total > usual.total) is found
