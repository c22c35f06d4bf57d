"""Import every module of a job in its own fork. The parent has loaded the large libraries.

The forks write byte code to a folder of the job, never beside the sources.
"""

from __future__ import annotations

import importlib
import resource
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from .faults import CatchAll
from .forks import run_forks

# What most training code imports. Those that are installed are loaded once, the others are skipped.
BASES = (
    "numpy", "torch", "torch.distributed", "torch.distributed.fsdp", "torch.distributed.checkpoint",
    "torch.distributed.device_mesh", "torch.utils.data", "torch.utils.tensorboard", "torch._dynamo",
    "pandas", "pyarrow", "tensordict", "omegaconf", "hydra", "datasets", "accelerate", "peft",
    "transformers", "transformers.modeling_utils", "transformers.generation.utils",
    "transformers.models.auto.modeling_auto", "transformers.processing_utils", "ray", "ray.actor",
)  # fmt: skip


def run(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Import job["modules"], `jobs` at a time and within `limit` seconds each. Yields one line per module."""
    code = Path(job["code"])
    sys.dont_write_bytecode = True
    for name in BASES:
        if not (code / name.partition(".")[0]).exists():
            with CatchAll():
                importlib.import_module(name)
    sys.pycache_prefix, sys.dont_write_bytecode = job["byte_code"], False
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    bodies = {module: partial(_import, module, job["entry"]) for module in job["modules"]}
    for module, found in run_forks(bodies, code=code, limit=job["limit"], at_once=job["jobs"]):
        yield {"module": module, **found}


def _import(module: str, entry: str) -> dict[str, Any]:
    """Import a module; where that fails, after the trainer's.

    Some can only be imported after others, such as those of Megatron-core 0.8, which import each other.
    """
    with CatchAll() as alone:
        importlib.import_module(module)
    if alone.problem is not None:
        if isinstance(alone.problem, ModuleNotFoundError):
            raise alone.problem
        with CatchAll():
            importlib.import_module(entry)
        importlib.import_module(module)
    return {}
