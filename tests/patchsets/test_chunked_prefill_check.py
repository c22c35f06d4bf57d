"""The patch chunked-prefill-check of patchset verl/55e3c5b: verl's own rollout, and vllm-ascend's own scheduler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.patchsets.flagship_tree import run, used

for needed in ("torch", "ray", "tensordict", "msgspec", "gguf", "blake3"):  # what verl and vLLM import
    pytest.importorskip(needed)
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

COMPONENTS = ["verl", "vllm", "vllm-ascend"]
HERE = Path(__file__).parent
SLUG = "chunked-prefill-check"
REFUSED = "ValueError: Enable chunked prefill, max_num_batched_tokens is smaller than max_model_len"
DROPPED = "ValueError: The Ascend scheduler prefills a prompt in one step of at most"


def sizes(prompt: int, step: int, ascend: bool = False, **more: Any) -> dict[str, Any]:
    """prompt, step: tokens; 3072 more for the answer."""
    scheduler = {"additional_config": {"ascend_scheduler_config": {"enabled": ascend}}}
    return {
        "prompt_length": prompt, "response_length": 3072, "max_num_batched_tokens": step, "max_num_seqs": 64,
        "engine_kwargs": {"vllm": scheduler}, **more,
    }  # fmt: skip


JOBS = [
    sizes(1024, 1024, ascend=True),
    sizes(2048, 1024),  # in pieces
    sizes(1024, 4096),
    sizes(1024, 1024, enable_chunked_prefill=False),
    sizes(1025, 1024, ascend=True),
    sizes(1025, 1024, ascend=True, enable_chunked_prefill=False),
]


def answers(code: Path, **named: Any) -> list[str]:
    """Per job the tokens of a step that the engine was made for, or the error."""
    job = json.dumps({"jobs": JOBS})
    found = run(HERE / "run_vllm_rollout.py", code, job, npu=False, VLLM_PLUGINS="", **named)
    return [str(one.get("error") or one["step"]) for one in found["ranks"][0]]


def test_steps_shorter_than_an_answer(patched_tree: Path, tmp_path: Path) -> None:
    """Upstream refuses what chunked prefill is for, and lets pass what would be waited for for ever."""
    upstream = answers(patched_tree, NPU_RL_CHUNKED_PREFILL_CHECK="0")
    assert [one.startswith(REFUSED) for one in upstream] == [True, True, False, False, True, False]
    assert upstream[-1] == "1024"
    patched = answers(patched_tree, usage=tmp_path / "usage")
    assert patched[:4] == ["1024", "1024", "4096", "1024"]
    assert all(one.startswith(DROPPED) for one in patched[4:])
    assert used(tmp_path / "usage", SLUG) == 2  # what upstream would have refused
