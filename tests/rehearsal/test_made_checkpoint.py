"""The checkpoint of a rehearsal: made once, whole or not at all."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from npu_rl.common.errors import WeightsError
from npu_rl.rehearsal.made_checkpoint import convert_tiny_model
from tests.weights.inline_workers import DIST, equal

pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal


def test_it_is_the_models_and_made_once(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tests.runtime.tiny_deepseek import edit, make

    made = tmp_path / ".made/0123"
    hf = make(made / "model")
    prepared: Any = SimpleNamespace(interpreter=SimpleNamespace(path=sys.executable, packages={"torch": "2"}))
    checkpoint = convert_tiny_model(prepared, made, DIST)
    assert equal(hf, checkpoint)
    edit(hf, attention_bias=True)  # would be refused
    assert convert_tiny_model(prepared, made, DIST) == checkpoint
    prepared.interpreter.packages["torch"] = "3"
    with pytest.raises(WeightsError, match="attention_bias"):
        convert_tiny_model(prepared, made, DIST)
    assert sorted(made.parent.iterdir()) == sorted([made, checkpoint])
