"""What `weights convert` refuses of an input: before it writes anything, with the file and the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.errors import HostError, NpuRlError
from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.weights.checkpoints.check_weights import check_weights
from npu_rl.weights.checkpoints.worker_pool import Workers
from tests.tensors import megatron_checkpoints as tiny
from tests.weights.inline_workers import InlineWorkers, convert, equal, limited

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal


@pytest.fixture
def hf(deepseek: tuple[Path, Any]) -> Path:
    return deepseek[0]


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
