"""Put a server of verl 0.8 or newer to sleep and print the level that it asks of its engine.

    python run_server_sleep.py

On PYTHONPATH: the stand-ins for a CPU, with or without the one for torch_npu, and a tree with verl. `sleep` of
vLLMHttpServer is upstream's; the engine notes what it is asked, and vLLM's modules are names that compute nothing.
"""

from __future__ import annotations

import asyncio
import json
import sys
from types import SimpleNamespace

from npu_rl_standins.named_modules import NamedModules

sys.meta_path.insert(0, NamedModules("vllm"))

from verl.workers.rollout.replica import RolloutMode  # noqa: E402
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer  # noqa: E402


class Engine:
    def __init__(self) -> None:
        self.levels: list[int] = []

    async def sleep(self, level: int) -> None:
        self.levels.append(level)

    async def reset_encoder_cache(self) -> None:
        pass


def main() -> list[int]:
    server = vLLMHttpServer.__new__(vLLMHttpServer)
    server.node_rank, server.rollout_mode = 0, RolloutMode.HYBRID
    server.model_config = SimpleNamespace(lora_rank=0, lora={})
    server.config, server.engine = SimpleNamespace(free_cache_engine=True, mtp=None), Engine()
    asyncio.run(server.sleep())
    return list(server.engine.levels)


if __name__ == "__main__":
    found = main()
    print("\n" + json.dumps(found))
