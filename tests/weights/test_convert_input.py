"""What `weights convert` refuses of an input: before it writes anything, with the file and the reason."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.errors import HostError, NpuRlError
from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.weights.checkpoints.check_weights import check_weights
from npu_rl.weights.checkpoints.worker_pool import Workers
from tests.support import clean_env, run_cli
from tests.tensors import megatron_checkpoints as tiny
from tests.weights.inline_workers import InlineWorkers, convert, equal, limited
from tests.weights.tiny_checkpoint import change_json

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal

INDEX = "model.safetensors.index.json"
LAST = "model-00003-of-00003.safetensors"
Change = Callable[[Path], object]


@pytest.fixture
def hf(deepseek: tuple[Path, Any]) -> Path:
    return deepseek[0]


def config(**keys: Any) -> Change:
    return lambda folder: change_json(folder / "config.json", **keys)


def tensor(name: str, make: Callable[[], Any]) -> Change:
    """Put a tensor in place of the one of this name, or into the last shard."""

    def change(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        index = json.loads((folder / INDEX).read_text())
        shard = index["weight_map"].setdefault(name, LAST)
        save_file(load_file(folder / shard) | {name: make()}, folder / shard)
        (folder / INDEX).write_text(json.dumps(index))

    return change


def one_shard_alone(folder: Path) -> None:
    for path in folder.glob("*.safetensors*"):
        path.unlink()


CASES: dict[str, tuple[Change, str]] = {
    "no weights": (one_shard_alone, "The folder has no checkpoint"),
    "deeper": (config(num_hidden_layers=5), r"It lacks \d+ tensors of the model, such as model.layers.4"),
    "experts in some layers": (config(moe_layer_freq=2), "`moe_layer_freq` is 2"),
    "another model": (config(architectures=["LlamaForCausalLM"]), "`architectures` is"),
    "all that is wrong": (
        config(hidden_size="16", v_head_dim=0),
        "(?s)`hidden_size` is '16'.*`v_head_dim` is 0",
    ),
    "another dtype": (
        tensor("model.norm.weight", lambda: torch.ones(16, dtype=torch.float64)),
        "(?s)Unsupported dtype.*model.norm.weight.*float64",
    ),
    "a scale of BF16": (
        tensor("model.layers.0.mlp.up_proj.weight_scale_inv", lambda: torch.ones(1)),
        "model.layers.0.mlp.up_proj.weight",
    ),
    "a bias": (
        tensor("model.layers.0.self_attn.o_proj.bias", lambda: torch.ones(1)),
        "(?s)tensors that its model doesn't have.*model.layers.0.self_attn.o_proj.bias",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_before_anything_is_written(case: str, hf: Path, tmp_path: Path) -> None:
    change, expected = CASES[case]
    change(hf)
    with pytest.raises(NpuRlError, match=expected):
        convert(hf, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_tensors_of_a_further_layer_are_left_out(hf: Path, tmp_path: Path) -> None:
    """Those of multi-token prediction, which the trainer has no place for."""
    tensor("model.layers.4.eh_proj.weight", lambda: torch.ones(1))(hf)
    convert(hf, tmp_path / "out")
    assert (tmp_path / "out/metadata.json").exists()


def test_a_worker_that_cannot_write_ends_it(hf: Path, tmp_path: Path) -> None:
    """No file may grow above 16 kB; what is left is no checkpoint to anybody, and the next conversion goes on."""
    with pytest.raises(HostError, match="File too large"):
        convert(hf, tmp_path / "out", workers=Workers(limited(tmp_path), 1))
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert not left & {".metadata", "metadata.json"}
    convert(hf, tmp_path / "out")
    assert (tmp_path / "out/metadata.json").exists()
    assert not list((tmp_path / "out").glob("*.part*"))


def test_a_head_that_is_not_the_embeddings_it_is_tied_to(tmp_path: Path) -> None:
    """It was left out without a word. `convert`, `check` and `audit` now agree."""
    config = tiny.QWEN | {"tie_word_embeddings": True, "model_type": "qwen2"}
    tensors = tiny.hf_tensors(tiny.QWEN)
    embeddings = tensors["model.embed_tokens.weight"]
    for name, head, accepted in (("same", embeddings.clone(), True), ("other", embeddings.roll(1), False)):
        source, target = tmp_path / name, tmp_path / f"{name}-dist"
        tiny.write_hf(source, config, tensors | {"lm_head.weight": head})
        (found,) = [one for one in check_weights(source, InlineWorkers(), None).findings
                    if one.rule == "weights-tied"]  # fmt: skip
        if accepted:
            assert found.severity is Severity.NOTE
            assert convert(source, target)["tied_left_out"] == ["lm_head.weight"]
        else:
            assert found.severity is Severity.ERROR and "values of lm_head.weight differ" in found.message
            with pytest.raises(NpuRlError, match="The output head differs") as caught:
                convert(source, target)
            assert "lm_head.weight" in str(caught.value.where) and not target.exists()
            tied = tiny.write_hf(
                tmp_path / "tied", config, {k: v for k, v in tensors.items() if k != "lm_head.weight"}
            )
            assert not equal(source, tied)


@pytest.mark.parametrize("written", ["../venv/bin/python", "~/venv/bin/python"])
def test_an_interpreter_is_found_as_it_is_typed(written: str, hf: Path, tmp_path: Path) -> None:
    """Workers start in another folder than the user's."""
    (tmp_path / "work").mkdir()
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (tmp_path / "venv/bin/python").chmod(0o755)
    env = clean_env(tmp_path) | {"HOME": str(tmp_path)}
    for words in (["check", "../hf"], ["convert", "../hf", "../out", "--format", "torch_dist"]):
        done = run_cli(
            ["weights", *words, "--json", "--python", written], env, tmp_path / "work", timeout=120
        )
        assert "can't be started" not in done.stderr
        assert json.loads(done.stdout)
    assert (tmp_path / "out" / "metadata.json").is_file()
