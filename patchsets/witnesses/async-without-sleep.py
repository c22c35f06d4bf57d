"""Generate twice with verl's AgentLoopManager and note whether it wakes its engines, with and without their sleep.

verl 0.5.0 syncs an engine's weights when it wakes (verl/workers/rollout/vllm_rollout/vllm_async_server.py:330, which
ends in the sharding manager's __enter__), and AgentLoopManager.generate_sequences, which is executed here, wakes the
engines only where free_cache_engine is true (verl/experimental/agent_loop/agent_loop.py:495@v0.5.0).

Ray's actors are objects of this process: a server notes its calls, a worker returns its prompts.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import torch
from verl import DataProto
from verl.experimental.agent_loop import agent_loop

CALLS = 2


def remote(function: Any) -> SimpleNamespace:
    """Return an actor's method; `ray.get` is the identity."""
    return SimpleNamespace(remote=function)


def wakes(free_cache_engine: bool) -> int:
    """Return how often an engine is woken in CALLS calls."""
    noted: list[str] = []
    server = SimpleNamespace(
        wake_up=remote(lambda: noted.append("wake_up")), sleep=remote(lambda: noted.append("sleep"))
    )
    agent_loop.ray = SimpleNamespace(get=lambda found: found)
    manager = agent_loop.AgentLoopManager.__new__(agent_loop.AgentLoopManager)
    manager.config = SimpleNamespace(
        actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(free_cache_engine=free_cache_engine))
    )
    manager.async_llm_servers = [server]
    manager.agent_loop_workers = [SimpleNamespace(generate_sequences=remote(lambda chunk: chunk))]
    manager._performance_metrics = lambda metrics, output: {}
    prompts = DataProto.from_dict({"prompts": torch.zeros(2, 4)}, meta_info={"metrics": []})
    for _ in range(CALLS):
        manager.generate_sequences(prompts)
    return noted.count("wake_up")


if __name__ == "__main__":
    with_sleep, without = wakes(True), wakes(False)
    print(json.dumps({"fault": with_sleep == CALLS and without == 0, "wakes": [with_sleep, without]}))
