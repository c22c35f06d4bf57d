"""`plan` and `train` name weights that a trainer could not load, and the command that fixes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npu_rl.recipes.judgement.judge import judge
from npu_rl.recipes.judgement.judgement import Judgement
from npu_rl.recipes.recipe.load_recipe import load_recipe
from tests.weights.tiny_checkpoint import change_json, tiny_fp8

# The quickstart's trainer is FSDP, which loads the weights of model.path.
RECIPE = ("quickstart", "model.make=~")


SIZES = {  # of DeepSeek-V3, with fewer layers
    "model_type": "deepseek_v3", "num_hidden_layers": 8, "hidden_size": 7168, "intermediate_size": 18432,
    "num_attention_heads": 128, "vocab_size": 129280, "kv_lora_rank": 512, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256,
    "moe_intermediate_size": 2048, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4,
    "first_k_dense_replace": 3, "max_position_embeddings": 4096,
}  # fmt: skip


def sized_fp8(folder: Path) -> Path:
    """Return tiny weights in FP8 whose config.json has the sizes of a model, for a recipe without an architecture."""
    source = tiny_fp8(folder)
    change_json(source / "config.json", **SIZES)
    return source


def judged(name: str, *words: str, **options: Any) -> Judgement:
    return judge(load_recipe(name, words), **options)


def rules(*overrides: str) -> dict[str, str]:
    findings = judged(*RECIPE, *overrides).findings
    return {found.rule: str(found) for found in findings if found.rule.startswith("weights-")}


def test_weights_in_fp8_are_sent_to_the_cast(tmp_path: Path) -> None:
    source = tiny_fp8(tmp_path / "fp8")
    found = rules(f"model.path={source}")
    line = found["weights-config-quantization"]
    assert line.startswith("command line: model.path=")  # and its value, cut where it is long
    assert f": model.path: {source}/config.json: quantization_config" in line
    assert f"fix: npu-rl weights cast {source} {source}-BF16 [" in line
    assert "they take 0.0 GB of disk" in line
    assert "weights-mtp-tensors" not in found


@pytest.mark.parametrize(("manifest", "vllm_refuses"), [("today", True), ("newest", False)])
def test_where_bridges_build_the_actor_only_vllm_refuses_fp8(
    tmp_path: Path, manifest: str, vllm_refuses: bool
) -> None:
    """mbridge reads FP8 and verl sets num_nextn_predict_layers to 0; vllm-ascend 0.18 refuses a model in FP8."""
    source = sized_fp8(tmp_path / "fp8")
    words = [f"model.path={source}", f"manifest={manifest}", "model.architecture=~"]
    if manifest == "newest":
        words.append("overrides.actor_rollout_ref.actor.megatron.vanilla_mbridge=true")
    found = {one.rule: one.fix for one in judged("today-dapo-deepseek-v3", *words).errors}
    assert not {"weights-config-quantization", "weights-config-mtp", "clean-model-config"} & found.keys()
    assert ("quantized-model" in found) is vllm_refuses
    if vllm_refuses:
        assert found["quantized-model"].startswith(f"npu-rl weights cast {source} {source}-BF16 (reads ")


def fix_of(rule: str, name: str, *words: str) -> str:
    findings = judged(name, *words, here=True).findings
    (found,) = (found for found in findings if found.rule == rule)
    return found.fix


def test_a_checkpoint_that_is_not_there_comes_with_the_command_that_makes_it(tmp_path: Path) -> None:
    source, target = sized_fp8(tmp_path / "bf16"), tmp_path / "dist"
    paths = (f"model.path={source}", f"model.checkpoint={target}")
    fix = fix_of("model-checkpoint", "deepseek-r1-zero-256die", *paths, "model.architecture=~")
    command = f"npu-rl weights convert {source} {target} --layout deepseek-r1-zero-256die (reads "
    assert fix.startswith(command)
    whole = fix_of("model-checkpoint", "deepseek-r1-zero-256die", paths[1])
    assert "--layout deepseek-r1-zero-256die (reads 1342.1 GB, needs 1342.1 GB of disk), or name one" in whole


@pytest.mark.parametrize(
    ("name", "download"),
    [
        ("deepseek-r1-zero-256die", "deepseek-v3-base"),
        ("deepseek-v3-cann-256die", "deepseek-v3"),
        ("pai-deepseek-v3-128gpu", "deepseek-v3-0324"),
    ],
)
def test_weights_that_are_not_there_come_with_their_download_and_the_cast(name: str, download: str) -> None:
    command = (
        f"npu-rl weights get {download} (prints the download), then npu-rl weights cast {download} /no/such "
        "(reads 673.2 GB, needs 1342.1 GB of disk), or "
    )
    assert fix_of("model-path", name, "model.path=/no/such").startswith(command)


def test_weights_of_a_trainer_whose_keys_are_its_own() -> None:
    words = [f"overrides.{key}=/no/{value}" for key, value in (
        ("megatron_training.tokenizer_name_or_path", "Qwen2.5-7B"), ("actor_config.load", "ckpt"),
        ("rl_config.integrated_mode_config.ref_model_load_path", "ckpt"),
    )]  # fmt: skip
    findings = judged("mindspeed-rl-grpo-qwen25-7b", *words, here=True).findings
    fixes = {found.trainer_key: found.fix for found in findings}
    convert = "npu-rl weights convert /no/Qwen2.5-7B /no/ckpt --layout mindspeed-rl-grpo-qwen25-7b, or set "
    assert fixes["actor_config.load"].startswith(convert)
    assert fixes["rl_config.integrated_mode_config.ref_model_load_path"].startswith(convert)
    get = "npu-rl weights get qwen2.5-7b --to /no/Qwen2.5-7B, or set "
    assert fixes["megatron_training.tokenizer_name_or_path"].startswith(get)
