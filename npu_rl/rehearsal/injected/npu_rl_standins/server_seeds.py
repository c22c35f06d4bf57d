"""A seed for each request to vLLM's server, so that a resumed step draws the tokens that it drew before.

verl 0.8 gives its requests no seed (verl/workers/rollout/vllm_rollout/vllm_async_server.py:505@v0.8.0), and the server
draws with one generator for all of them in the order in which they arrive, which no checkpoint keeps. The seed is made
of the recipe's, the step, the prompt, and how many requests with that prompt came before in the step.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections import Counter
from types import ModuleType
from typing import Any

from .hooks import after_import
from .used import count


def install() -> None:
    """Seed the requests to verl's server, if the run has a seed."""
    if "NPU_RL_SEED" in os.environ:
        after_import("verl.workers.rollout.vllm_rollout.vllm_async_server", _seed_requests)


def _seed_requests(module: ModuleType) -> None:
    server = module.vLLMHttpServer  # type: ignore[attr-defined]
    upstream = server.generate
    before: Counter[tuple[Any, ...]] = Counter()

    @functools.wraps(upstream)
    async def generate(
        self: Any, prompt_ids: Any, sampling_params: dict[str, Any], *arguments: Any, **named: Any
    ) -> Any:
        count("vllm.request_seeds")
        request = (self.global_steps, tuple(prompt_ids))
        seed = request_seed(os.environ["NPU_RL_SEED"], request, before[request])
        before[request] += 1
        return await upstream(self, prompt_ids, {**sampling_params, "seed": seed}, *arguments, **named)

    server.generate = generate


def request_seed(seed: str, request: tuple[Any, ...], number: int) -> int:
    """Return the seed of the request with this number, from 0, of those that are alike in a step."""
    digest = hashlib.sha256(repr((seed, request, number)).encode()).digest()
    return int.from_bytes(digest[:6], "big")
