"""Show whether vLLM shortens the sequences that a rollout requested to the tokenizer's model_max_length.

Called are ModelConfig.get_and_verify_max_len (vllm/config.py:1423@v0.9.1), for a model of 163,840 positions and a
tokenizer_config.json with a model_max_length of 16,384, as vllm-project/vllm#20322 names it for DeepSeek, and
check_stop (vllm/v1/core/sched/utils.py) for a prompt of 1,024 tokens and at most 20,480 of a response, what verl's
rollout asks for by an explicit max_model_len. Tokenizer and model are two small files and a namespace.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from witness_common import find_ascend, show

find_ascend()
from vllm.config import ModelConfig  # noqa: E402
from vllm.v1.core.sched.utils import check_stop  # noqa: E402

STAND_INS = ("npu",)
ENVIRONMENT = {"VLLM_VERSION": "0.9.1", "VLLM_PLUGINS": "none"}

PROMPT, RESPONSE, OF_TOKENIZER, OF_MODEL = 1024, 20480, 16384, 163840


def longest(folder: str) -> int:
    """Return the max_model_len that the engine gets."""
    Path(folder, "tokenizer_config.json").write_text(json.dumps({"model_max_length": OF_TOKENIZER}))
    model: Any = SimpleNamespace(max_position_embeddings=OF_MODEL, model_type="deepseek_v3")
    config = SimpleNamespace(
        hf_config=model, hf_text_config=model, runner_type="generate", tokenizer=folder, trust_remote_code=False,
        tokenizer_revision=None, disable_sliding_window=False, spec_target_max_model_len=None, encoder_config=None,
        get_hf_config_sliding_window=lambda: None, get_sliding_window=lambda: None,
    )  # fmt: skip
    return ModelConfig.get_and_verify_max_len(config, PROMPT + RESPONSE)


def response_until_stop(max_model_len: int) -> tuple[int, str]:
    """Return the response's tokens when vLLM stops it, and the status; the model never ends it."""
    request = SimpleNamespace(
        max_tokens=RESPONSE, output_token_ids=[1], eos_token_id=0, status=None, num_output_tokens=0,
        num_tokens=PROMPT, pooling_params=None, sampling_params=SimpleNamespace(ignore_eos=False, stop_token_ids=()),
    )  # fmt: skip
    while True:
        request.num_output_tokens += 1
        request.num_tokens += 1
        if check_stop(request, max_model_len):
            return request.num_output_tokens, request.status.name


def main() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        found = longest(folder)
    tokens, status = response_until_stop(found)
    return {
        "fault": tokens < RESPONSE, "asked for": PROMPT + RESPONSE, "max_model_len": found,
        "response stopped at": tokens, "as": status,
    }  # fmt: skip


if __name__ == "__main__":
    show(main)
