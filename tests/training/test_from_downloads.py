"""The flagship's page, line by line: from the downloads to the dry run, with a toy model in place of DeepSeek-V3-Base.

The toy has what the recipe's layout needs: 61 layers, 256 experts (in the last layer alone), FP8, multi-token
prediction.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.data_check.test_check import made_tokenizer
from tests.datasets.test_prepare import deepscaler, write
from tests.doc_pages import typed_commands
from tests.support import ROOT, run_cli
from tests.tensors import megatron_checkpoints as tiny

torch = pytest.importorskip("torch")
pytest.importorskip("pyarrow")
pytest.importorskip("transformers")
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams, pytest.mark.pypi]

MANIFEST, RECIPE = "deepseek-r1-zero", "deepseek-r1-zero-256die"
CONFIG = {
    **tiny.DEEPSEEK, "model_type": "deepseek_v3", "torch_dtype": "bfloat16", "vocab_size": 256,
    "num_hidden_layers": 61, "first_k_dense_replace": 60, "n_routed_experts": 256, "num_experts_per_tok": 8,
    "n_group": 8, "topk_group": 4, "num_key_value_heads": 4, "max_position_embeddings": 163840,
    "num_nextn_predict_layers": 1, "tie_word_embeddings": False,
    "rope_scaling": {
        "type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
        "mscale": 1.0, "mscale_all_dim": 1.0,
    },
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}  # fmt: skip


def page_lines() -> list[list[str]]:
    """The commands of the section, without what sets up and what takes minutes or 256 dies."""
    commands = [shlex.split(line)[1:] for line in typed_commands(ROOT / "docs" / "deepseek-r1-zero.md")]
    chain = commands[next(n for n, words in enumerate(commands) if "--python" in words) :]
    names = [
        " ".join(words[:2]) if words[0] in ("data", "weights", "recipes") else words[0] for words in chain
    ]
    assert names == [
        "setup", "data get", "data prepare", "weights get", "weights cast", "weights check", "data check",
        "weights convert", "weights audit", "weights check", "recipes copy", "plan", "train", "train", "train",
    ]  # fmt: skip
    assert [words[-1] for words in chain[-3:]] == ["--rehearse", "--dry-run", "DIR"]
    return [*chain[1:-3], chain[-2]]


def download(folder: Path) -> None:
    """Lay what the printed commands would have downloaded."""
    tensors: dict[str, Any] = {}
    for name, value in tiny.hf_tensors({**CONFIG, "num_hidden_layers": 62}).items():
        if re.search(r"(_proj|_mqa)\.weight$", name):
            tensors[name] = value.float().clamp(-400, 400).to(torch.float8_e4m3fn)
            tensors[f"{name}_scale_inv"] = torch.full([-(-size // 128) for size in value.shape], 0.5)
        else:
            tensors[name] = value
    model = tiny.write_hf(folder / "deepseek-v3-base", CONFIG, tensors)
    for file in made_tokenizer(folder / "made").iterdir():
        file.rename(model / file.name)
    (folder / "deepscaler").mkdir()
    write(folder / "deepscaler" / "deepscaler.json", deepscaler(900))


def set_paths(recipe: Path) -> None:
    """What the page's text says to edit."""
    text = recipe.read_text(encoding="utf-8")
    for key, value in {
        "path": "deepseek-v3-base-bf16",
        "checkpoint": "ckpt",
        "train": "ds/train.parquet",
        "test": "ds/test.parquet",
    }.items():
        text, count = re.subn(
            rf"^  {key}: \[?~[^ \]\n]+\]?", f"  {key}: {recipe.parent / value}", text, count=1, flags=re.M
        )
        assert count == 1, key
    recipe.write_text(text, encoding="utf-8")


def walk(folder: Path, env: dict[str, str], workspace: Path) -> dict[str, str]:
    """Run the page's lines in a folder; what each printed."""
    download(folder)
    printed: dict[str, str] = {}
    for words in page_lines():
        at = words.index("--workspace") if "--workspace" in words else None
        if at is not None:
            words[at + 1] = str(workspace)
        if words[:2] == ["weights", "check"] or words[0] in ("plan", "train"):
            words.append("model.architecture=null")  # the toy is another model
        if words[0] == "train":
            words.append("cluster.address=10.0.0.1:6379")
        if (words[0] == "weights" and words[1] != "get") or words[:2] == ["data", "check"]:
            words += ["--python", sys.executable]
        done = run_cli(words, env, folder, timeout=600)
        assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
        name = " ".join(words[:2])
        printed[name] = printed.get(name, "") + done.stdout
        if words[:2] == ["recipes", "copy"]:
            set_paths(folder / words[3])
    return printed


def test_the_page_leads_from_the_downloads_to_the_dry_run_in_its_tree(
    tmp_path: Path, env: dict[str, str], workspace: Path
) -> None:
    pytest.importorskip("hydra")
    printed = walk(tmp_path, env, workspace)
    assert "names and shapes are those of DeepseekV3ForCausalLM" in printed["weights check"]
    assert "Megatron's torch_dist" in printed["weights check"] and "Equal: " in printed["weights audit"]
    assert printed["plan ./my-recipe.yaml"].startswith("fits: ")
    assert "right-boxed 1.0" in printed["data check"] and printed["data check"].endswith("\nno error\n")
    composed = json.loads((Path(env["NPU_RL_RUNS"]) / f"{RECIPE}.dry-run" / "composed.json").read_text())
    megatron = composed["actor_rollout_ref"]["actor"]["megatron"]
    assert megatron["dist_checkpointing_path"] == str(tmp_path / "ckpt")
    assert composed["actor_rollout_ref"]["model"]["path"] == str(tmp_path / "deepseek-v3-base-bf16")
    assert composed["data"]["train_files"] == [str(tmp_path / "ds" / "train.parquet")]
