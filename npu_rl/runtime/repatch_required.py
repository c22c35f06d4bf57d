"""Adaptation repatch-required: a MindSpeed that can't be imported stops the Megatron workers that are to train.

verl takes any ImportError of `mindspeed.megatron_adaptor` for a machine without NPUs and goes on with `repatch =
None` (verl/workers/megatron_workers.py:31@55e3c5b, workers/engine/mindspeed/transformer_impl.py:18@v0.8.0, where the
engine is the one that `megatron` has on NPUs). On NPUs that trains Megatron as it is, without MindSpeed's kernels and
without one of the arguments in override_transformer_config, without a message.

The trainer's driver imports the workers' module as well, on a host that may have no torch_npu, and makes no worker of
it: so the error is raised where a worker is built, not by the import.

A tree without any MindSpeed is an error as well: the manifest that has this adaptation lays it, so it is either
damaged or not the one on the path. For a tree that is meant to be without (CUDA), there is the switch.
"""

from __future__ import annotations

from collections.abc import Callable

from .switches import enabled
from .used import count

SLUG = "repatch-required"


def missing(error: ImportError) -> Callable[[object], None] | None:
    """Return verl's `repatch` after MindSpeed's import failed with `error`: None, as upstream, while switched off.

    Otherwise a function in its place, which verl calls first in each worker or engine (megatron_workers.py:171@55e3c5b,
    transformer_impl.py:45@v0.8.0), and which raises ImportError from `error`, with its module's name.
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
