"""Adaptation repatch-required: a MindSpeed that can't be imported stops the Megatron workers.

verl takes any ImportError of `mindspeed.megatron_adaptor` for a machine without NPUs and goes on with
`repatch = None` (verl/workers/megatron_workers.py:31@55e3c5b). On NPUs that trains Megatron as it is, without
MindSpeed's kernels and without one of the arguments in override_transformer_config, and says nothing.

A tree without any MindSpeed is an error as well: the manifest that has this adaptation lays it, so it is either
damaged or not the one on the path. For a tree that is meant to be without (CUDA), there is the switch.
"""

from __future__ import annotations

from .switches import enabled
from .used import count

SLUG = "repatch-required"


def missing(error: ImportError) -> None:
    """What `repatch` is where MindSpeed's import failed with `error`: None, as upstream has it, while switched off.

    Raises ImportError from `error` otherwise, with its module's name.
    """
    if not enabled(SLUG):
        return
    count(SLUG)
    raise ImportError(
        f"MindSpeed can't be imported: {_cause(error)}. verl would go on with Megatron as it is, without MindSpeed's "
        f"kernels for NPUs and without what actor.megatron.override_transformer_config asks of it, and say nothing. "
        f"Look at the error above this one; `npu-rl verify` shows whether the tree is whole. "
        f"NPU_RL_REPATCH_REQUIRED=0 goes on without MindSpeed, as upstream does.",
        name=error.name,
        path=error.path,
    ) from error


def _cause(error: ImportError) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name in ("mindspeed", "mindspeed.megatron_adaptor"):
        return f"there is no module {error.name} on the path"
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"it needs the module {error.name}, which is not there"
    return f"{error} (module {error.name})" if error.name else str(error)
