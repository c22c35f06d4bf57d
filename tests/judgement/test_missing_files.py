"""The model, the checkpoint and the data of a recipe that are not on this machine, and the commands that make data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npu_rl.recipes.judgement.judge import judge
from npu_rl.recipes.judgement.missing_files import path_findings
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe, load_recipe
from npu_rl.recipes.sizing.model_config import differing_sizes
from tests.code_trees import lay


def real(tmp_path: Path, **changes: str) -> LoadedRecipe:
    """A recipe with a model and data of its own, by default all there."""
    there = {"path": f"{tmp_path}/hf", "train": f"{tmp_path}/train.parquet", "test": "./train.parquet"}
    values = {**there, **changes}
    recipe = (
        "schema: 1\nextends: quickstart\nname: real\n"
        f"model: {{make: ~, path: '{values['path']}'}}\n"
        f"data: {{make: ~, rows: ~, train: ['{values['train']}'], test: ['{values['test']}']}}\n"
    )
    lay(tmp_path, {"hf/config.json": "{}", "train.parquet": "", "r.yaml": recipe})
    return load_recipe(str(tmp_path / "r.yaml"))


@pytest.mark.parametrize(
    ("changes", "rule", "key"),
    [
        ({"path": "/nonexist"}, "model-path", "model.path"),
        ({"path": "./hg"}, "model-path", "model.path"),
        ({"path": "/dev/null/x"}, "model-path", "model.path"),
        ({"train": "/nonexist/train.parquet"}, "data-file", "data.train[0]"),
        ({"test": "./tests.parquet"}, "data-file", "data.test[0]"),
        ({"test": "~/no/such/folder/of/mine.parquet"}, "data-file", "data.test[0]"),
    ],
)
def test_what_is_missing_is_an_error_where_the_recipe_runs_and_listed_elsewhere(
    tmp_path: Path, changes: dict[str, str], rule: str, key: str
) -> None:
    loaded = real(tmp_path, **changes)
    elsewhere, here = judge(loaded), judge(loaded, here=True)
    assert elsewhere.not_here == {key: next(iter(changes.values()))}
    assert elsewhere.absent_lines[0] == "Not on this machine, so not checked:"
    assert rule not in {one.rule for one in elsewhere.findings} and here.not_here == {}
    (one,) = (one for one in here.errors if one.rule == rule)
    assert one.key == key and one.where.startswith(str(tmp_path / "r.yaml"))
    assert judge(loaded, rehearse=True).not_here == {}, "a rehearsal needs none of them"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"path": "Qwen/Qwen2.5-0.5B"},
        {"path": "hdfs://a/model"},
        {"train": "hdfs://a/train.parquet"},
        {"train": "~nobody-of-this-machine/x.parquet"},
    ],
)
def test_what_is_here_or_elsewhere_by_its_name_is_let_through(
    tmp_path: Path, changes: dict[str, str]
) -> None:
    assert path_findings(real(tmp_path, **changes), None, here=True) == []
    assert judge(real(tmp_path, **changes)).absent_lines == ()


def test_a_model_folder_needs_its_config(tmp_path: Path) -> None:
    (one,) = path_findings(real(tmp_path, path=str(tmp_path)), None, here=True)
    assert one.rule == "model-path" and "has no config.json" in one.message


def test_a_checkpoint_that_is_not_here(tmp_path: Path) -> None:
    loaded = load_recipe("deepseek-r1-zero-256die", [f"model.checkpoint={tmp_path}/none"])
    keys = [one.key for one in path_findings(loaded, None, here=True)]
    assert keys == ["model.path", "model.checkpoint", "data.train[0]", "data.test[0]"]


def test_own_paths_of_a_trainer_that_are_not_here_are_listed(tmp_path: Path) -> None:
    load, data = "actor_config.load", "megatron_training.data_path"
    (tmp_path / "data_packed_input_ids_document.bin").touch()
    words = [f"overrides.{load}=/nowhere/ckpt", f"overrides.{data}={tmp_path}/data"]
    listed = judge(load_recipe("mindspeed-rl-grpo-qwen25-7b", words)).not_here
    assert listed[f"overrides['{load}']"] == "/nowhere/ckpt"
    assert not any(data in key for key in listed), "a data set is named by what its files' names begin with"


@pytest.mark.parametrize(
    ("name", "path", "command"),
    [
        (
            "deepseek-r1-zero-256die",
            "/d/ds/train.parquet",
            "npu-rl data prepare deepscaler --input FILE --output /d/ds --template r1-zero, or ",
        ),
        (
            "verl-npu-grpo-qwen3-235b",
            "/d/gsm8k/train.parquet",
            "npu-rl data prepare gsm8k --input FILE --output /d/gsm8k, or ",
        ),
        (
            "pai-deepseek-v3-128gpu",
            "/d/MATH-lighteval/train.parquet",
            "npu-rl data prepare math-lighteval --input FILE --output /d/MATH-lighteval, or ",
        ),
        (
            "deepseek-v3-cann-256die",
            "/d/deepscaler/valid.parquet",
            "npu-rl data prepare deepscaler --input FILE --output /d/deepscaler and set "
            "data.train=[/d/deepscaler/train.parquet], or ",
        ),
        (
            "quickstart",
            "{tmp}/train.parquet",
            "make one of deepscaler, gsm8k, math-lighteval (npu-rl data prepare NAME --input FILE --output DIR), or ",
        ),
        (
            "quickstart",
            "{tmp}/gsm8k.parquet",
            "npu-rl data prepare gsm8k --input FILE --output {tmp}/gsm8k and set "
            "data.train=[{tmp}/gsm8k/train.parquet], or ",
        ),
    ],
)
def test_missing_data_comes_with_the_command_that_makes_it(
    tmp_path: Path, name: str, path: str, command: str
) -> None:
    words = [f"data.train=[{path.format(tmp=tmp_path)}]"]
    if name == "quickstart":
        words += ["data.make=~", "data.rows=~", f"data.test=[{tmp_path}/t.parquet]"]
    if name.startswith("deepseek-r1-zero"):
        words.append("reward.function=npu_rl_runtime/rewards/deepscaler.py:compute_scores")
    found = path_findings(load_recipe(name, words), None, here=True)
    (one,) = (one for one in found if one.key == "data.train[0]")
    assert one.fix.startswith(command.format(tmp=tmp_path)), one.fix


TOY = {
    "model_type": "deepseek_v3", "num_attention_heads": 4, "hidden_size": 16, "kv_lora_rank": 8, "q_lora_rank": 8,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "num_hidden_layers": 2, "intermediate_size": 32,
    "vocab_size": 128, "max_position_embeddings": 4096,
}  # fmt: skip


@pytest.mark.parametrize("here", [False, True])
def test_a_folder_with_another_model_is_the_first_error(tmp_path: Path, here: bool) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TOY))
    judgement = judge(load_recipe("deepseek-r1-zero-256die", [f"model.path={tmp_path}"]), here=here)
    one = judgement.errors[0]
    assert (one.rule, one.key) == ("weights-architecture", "model.path")
    assert "is not model.architecture deepseek-v3: layers 2 and not 61" in one.message


def test_releases_of_one_architecture_may_differ_in_their_positions() -> None:
    """Qwen3-30B-A3B has 40960 positions, and its release of July 2025 has 262144."""
    config = {
        "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "vocab_size": 151936,
        "num_experts": 128, "moe_intermediate_size": 768, "num_experts_per_tok": 8,
        "max_position_embeddings": 262144,
    }  # fmt: skip
    assert differing_sizes("qwen3-30b-a3b", config) == []
    assert differing_sizes("qwen3-30b-a3b", {**config, "num_experts": 64}) == ["experts 64 and not 128"]
