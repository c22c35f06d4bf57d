"""`weights check` on models that transformers has written, whole and damaged."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.recipes.checkpoints.checkpoint_of_recipe import CheckpointOfRecipe
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.weights.checkpoints.check_weights import check_weights
from npu_rl.weights.checkpoints.checkpoint_findings import CheckedFolder
from npu_rl.weights.checkpoints.output_folder import NOTE
from tests.support import clean_env, run_cli
from tests.weights.inline_workers import InlineWorkers
from tests.weights.tiny_checkpoint import change_json, read_file, write_file

transformers: Any = pytest.importorskip("transformers")
pytestmark = pytest.mark.rehearsal

INDEX = "model.safetensors.index.json"
SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
DEEPSEEK = {
    **SIZES, **EXPERTS, "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 2, "topk_group": 1,
    "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
    "v_head_dim": 8,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v3": ("DeepseekV3", DEEPSEEK),
    "qwen2": ("Qwen2", SIZES),
    "qwen2, tied": ("Qwen2", {**SIZES, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {**SIZES, "head_dim": 8}),
    "qwen3_moe": ("Qwen3Moe", {**SIZES, **EXPERTS, "head_dim": 8, "num_experts": 4}),
}


def save(folder: Path, name: str) -> Path:
    kind, sizes = MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**sizes, torch_dtype="bfloat16")
    model = getattr(transformers, f"{kind}ForCausalLM")(config).bfloat16()
    model.save_pretrained(folder, max_shard_size="20KB")
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("check") / "model", "deepseek_v3")


@pytest.fixture
def folder(deepseek: Path, tmp_path: Path) -> Path:
    target = tmp_path / "model"
    subprocess.run(["cp", "-r", str(deepseek), str(target)], check=True)
    return target


def check(folder: Path, recipe: str | None = None, *overrides: str) -> CheckedFolder:
    loaded = None if recipe is None else load_recipe(recipe, overrides)
    return check_weights(folder, InlineWorkers(), None if loaded is None else CheckpointOfRecipe(loaded))


def rules(report: CheckedFolder, *severities: Severity) -> list[str]:
    return [f.rule for f in report.findings if not severities or f.severity in severities]


@pytest.mark.parametrize("name", MODELS)
def test_what_transformers_writes_is_right(tmp_path: Path, name: str) -> None:
    report = check(save(tmp_path / "model", name))
    assert rules(report, Severity.ERROR) == []
    assert report.ok and report.unchecked == ""
    assert report.model == f"{MODELS[name][0]}ForCausalLM"


def change_config(folder: Path, **changes: Any) -> None:
    change_json(folder / "config.json", **changes)


def change_tensor(folder: Path, name: str, change: Callable[[Any], Any], new_name: str | None = None) -> None:
    index = json.loads((folder / INDEX).read_text())
    shard = index["weight_map"].pop(name)
    tensors: dict[str, Any] = read_file(folder / shard)
    tensor = change(tensors.pop(name))
    if tensor is not None:
        tensors[new_name or name] = tensor
        index["weight_map"][new_name or name] = shard
    write_file(folder / shard, tensors, {"format": "pt"})
    (folder / INDEX).write_text(json.dumps(index))


NORM = "model.layers.1.input_layernorm.weight"
BIAS = "model.layers.1.mlp.gate.e_score_correction_bias"
DAMAGE: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "quantization": (
        lambda f: change_config(f, quantization_config={"quant_method": "fp8"}),
        "weights-config-quantization", "remove quantization_config",
    ),
    "mtp": (lambda f: change_config(f, num_nextn_predict_layers=1), "weights-config-mtp", "to 0"),
    "missing": (lambda f: change_tensor(f, NORM, lambda t: None), "weights-missing", ""),
    "shape": (lambda f: change_tensor(f, NORM, lambda t: (t[0], (4, 8), t[2])), "weights-shape", ""),
    "shard missing": (lambda f: next(f.glob("model-00002*")).unlink(), "weights-files", "Download"),
    "a cast that was killed": (
        lambda f: (f / NOTE).write_text('{"command": "cast"}'), "weights-cast-unfinished", "again",
    ),
    "a conversion that was killed": (
        lambda f: (f / NOTE).write_text('{"command": "convert"}'), "weights-convert-unfinished", "again",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_an_error(folder: Path, case: str) -> None:
    change, rule, fix = DAMAGE[case]
    change(folder)
    report = check(folder)
    assert rule in rules(report, Severity.ERROR)
    assert fix in next(f.fix for f in report.findings if f.rule == rule)


def test_what_is_not_as_it_could_be_is_advice(folder: Path) -> None:
    change_tensor(folder, NORM, lambda t: ("F32", t[1], t[2] * 2))
    (folder / "extra.safetensors").write_bytes(b"")
    (folder / "tokenizer.json").unlink()
    report = check(folder)
    assert report.ok
    found = ["weights-dtype", "weights-router-bias", "weights-tokenizer", "weights-unlisted"]
    assert sorted(rules(report, Severity.ADVICE)) == found  # `.bfloat16()` has rounded the router's bias


def test_the_code_of_a_checkpoint_does_not_run(folder: Path) -> None:
    (folder / "modeling_mine.py").write_text("raise SystemExit('it ran')\n")
    change_config(
        folder, auto_map={"AutoModelForCausalLM": "modeling_mine.Mine", "AutoConfig": "modeling_mine.Mine"}
    )
    assert check(folder).ok


def test_a_model_that_transformers_lacks_is_not_compared(folder: Path) -> None:
    change_config(folder, model_type="deepseek_v9")
    report = check(folder)
    assert report.ok
    assert report.unchecked.endswith("has no model of the type 'deepseek_v9'")


def test_the_command_says_it(folder: Path, tmp_path: Path) -> None:
    env = clean_env(tmp_path)
    done = run_cli(["weights", "check", folder, "--write-hashes"], env, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "names and shapes are those of DeepseekV3ForCausalLM" in done.stdout
    assert done.stdout.endswith("\nno error\n")
    assert run_cli(["weights", "check", folder, "--verify-hashes"], env, tmp_path).returncode == 0
    change_config(folder, num_nextn_predict_layers=1)
    done = run_cli(["weights", "check", folder, "--json"], env, tmp_path)
    report = json.loads(done.stdout)
    assert (done.returncode, report["ok"], report["hashes"]) == (1, False, None)
    assert [f["rule"] for f in report["findings"] if f["severity"] == "error"] == ["weights-config-mtp"]
    done = run_cli(["weights", "check", folder, "--verify-hashes"], env, tmp_path)
    assert done.returncode == 1
    assert "changed: config.json\n" in done.stdout
