"""torch's private writer of checkpoint items, with the signature of torch 2.6 and older.

torch made the format of the file an argument of `_write_item` (torch/distributed/checkpoint/filesystem.py), which
Megatron-core 0.12.1 calls without it (megatron/core/dist_checkpointing/strategies/filesystem_async.py:320). Real: what
is written. Not so with the torch that the trainer runs with on NPUs.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

from .used import count


def _install_in(module: ModuleType) -> None:
    upstream = module._write_item
    if "serialization_format" not in inspect.signature(upstream).parameters:
        return
    needed = len(inspect.signature(upstream).parameters)

    def _write_item(*arguments: Any, **named: Any) -> Any:
        if len(arguments) + len(named) < needed:
            count("torch.distributed.checkpoint._write_item")
            named["serialization_format"] = module.SerializationFormat.TORCH_SAVE
        return upstream(*arguments, **named)

    module._write_item = _write_item  # type: ignore[attr-defined]


HOOKS = {"torch.distributed.checkpoint.filesystem": _install_in}
