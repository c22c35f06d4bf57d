"""verl's engine `megatron` for NPUs continues without MindSpeed if its import fails, and reports nothing.

verl/workers/engine/mindspeed/transformer_impl.py@v0.8.0 takes any ImportError of mindspeed.megatron_adaptor for a
machine without NPUs. Here it is that of torch_npu, which a host without the stand-in lacks. The engine is the one
that verl's registry has for `megatron` on NPUs; what is executed is its first step, `_init_device_mesh`, up to
Megatron's process groups. "repatch" is MindSpeed's function, or null; else "error", "module" and "cause" are of what
was raised.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from witness_common import show


def main() -> dict[str, Any]:
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.mindspeed import transformer_impl

    repatch = transformer_impl.repatch
    found: dict[str, Any] = {"repatch": repatch and f"{repatch.__module__}.{repatch.__name__}"}
    engine = EngineRegistry._engines["language_model"]["megatron"]["npu"]
    reached: list[str] = []
    engine.__base__._init_device_mesh = lambda _: reached.append("process groups")
    config = EngineConfig(context_parallel_size=1, override_transformer_config={})
    try:
        engine._init_device_mesh(Engine(engine, config))
    except ImportError as error:
        cause = error.__cause__
        if "MindSpeed" not in str(error) or cause is None:
            raise
        found |= {"error": str(error), "module": error.name, "cause": [type(cause).__name__, str(cause)]}
    return {"fault": repatch is None and bool(reached), **found, "reached": reached}


class EngineConfig(SimpleNamespace):
    """The two configuration entries that the engine reads before it creates process groups."""

    def get(self, name: str, default: Any) -> Any:
        return getattr(self, name, default)


def Engine(kind: type, config: EngineConfig) -> Any:
    engine = kind.__new__(kind)
    engine.engine_config = config
    return engine


if __name__ == "__main__":
    show(main)
