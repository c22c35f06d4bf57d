"""Adaptation repatch-required: Megatron workers fail if MindSpeed can't be imported.

verl takes any ImportError of `mindspeed.megatron_adaptor` for a machine without NPUs and continues with `repatch =
None` (verl/workers/megatron_workers.py:31@55e3c5b; workers/engine/mindspeed/transformer_impl.py:18@v0.8.0, the engine
of `megatron` on NPUs). On NPUs that trains plain Megatron, without MindSpeed's kernels and without its arguments in
override_transformer_config, and prints no message.

The trainer's driver imports the workers' module too, on a host that may lack torch_npu, and builds no worker: so the
error is raised where a worker is built, not by the import.

A tree without MindSpeed is an error too: every manifest with this adaptation has MindSpeed, so the tree is damaged or
another one is on the path. For a tree that needs none (CUDA), turn the switch off.
"""

from __future__ import annotations

from collections.abc import Callable

from .switches import enabled
from .used import count

SLUG = "repatch-required"


def missing(error: ImportError) -> Callable[[object], None] | None:
    """Return verl's `repatch` after MindSpeed's import failed with `error`: upstream's None while switched off.

    Otherwise it is a function that raises ImportError from `error`, with the module's name. verl calls it first in each
    worker or engine (megatron_workers.py:171@55e3c5b, transformer_impl.py:45@v0.8.0).
    """
    if not enabled(SLUG):
        return None

    def repatch(_: object) -> None:
        count(SLUG)
        raise ImportError(
            f"MindSpeed can't be imported: {_cause(error)}. verl would continue with plain Megatron, without "
            f"MindSpeed's kernels for NPUs and its part of actor.megatron.override_transformer_config, and print no "
            f"warning. The error above this one has the details; `npu-rl verify` shows whether the tree is "
            f"whole. NPU_RL_REPATCH_REQUIRED=0 continues without MindSpeed, as upstream does.",
            name=error.name,
            path=error.path,
        ) from error

    return repatch


def _cause(error: ImportError) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name in ("mindspeed", "mindspeed.megatron_adaptor"):
        return f"no module {error.name} on the path"
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"it needs the module {error.name}, which is missing"
    return f"{error} (module {error.name})" if error.name else str(error)
