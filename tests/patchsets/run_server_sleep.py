"""Put a server of verl 0.8 or newer to sleep and print the level that it asks of its engine.

    python run_server_sleep.py

On PYTHONPATH: the stand-ins for a CPU, with or without the one for torch_npu, and a tree with verl. `sleep` of
vLLMHttpServer is upstream's; the engine notes what it is asked, and vLLM's modules are names that compute nothing.
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any


class Names(ModuleType):
    __path__: list[str] = []  # noqa: RUF012  a package, so that its modules are asked for, too
    __version__ = "0.18.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {}) if name[0].isupper() else Names(name)


class Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name.partition(".")[0] == "vllm" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Names(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.insert(0, Finder())

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
