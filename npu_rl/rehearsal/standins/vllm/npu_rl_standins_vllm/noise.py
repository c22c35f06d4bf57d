"""A record of each generation's initial random numbers; the rehearsal checks that none repeats.

A stack that seeds the device's generator before each generation samples alike in every step, which no metric shows.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from npu_rl_standins.used import count

_begun: list[bool] = []  # holds an item from the beginning of a generation to its first sampled token


def note_generations(module: Any) -> None:
    """Let `LLM.generate` of vllm.entrypoints.llm note that a generation begins."""
    generate = module.LLM.generate

    @functools.wraps(generate)
    def noting(self: Any, *arguments: Any, **named: Any) -> Any:
        _begun[:] = [True]
        return generate(self, *arguments, **named)

    module.LLM.generate = noting


def record_noise(metadata: Any) -> None:
    """Record the generator's state before a generation's first random token; `metadata`: vLLM's SamplingMetadata."""
    folder = os.environ.get("NPU_RL_USAGE")
    if not (_begun and folder) or metadata.all_greedy:
        return
    _begun.clear()
    count("vllm.noise_recorded")
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    line = {
        "rank": torch.distributed.get_rank() if distributed else 0,
        "noise": hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest(),
    }
    with (Path(folder) / f"noise-{os.uname().nodename}-{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
