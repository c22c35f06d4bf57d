"""Imports every module of a job on its own: a server that has loaded the heavy libraries forks once per module.

The forks write byte code to a folder of the job's, never beside the sources.
"""

from __future__ import annotations

import importlib
import resource
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from .faults import Caught
from .forks import run_forks

# What training code imports nearly everywhere. Those that are there are loaded once; those that aren't are not missed.
BASES = (
    "numpy", "torch", "torch.distributed", "torch.distributed.fsdp", "torch.distributed.checkpoint",
    "torch.distributed.device_mesh", "torch.utils.data", "torch.utils.tensorboard", "torch._dynamo",
    "pandas", "pyarrow", "tensordict", "omegaconf", "hydra", "datasets", "accelerate", "peft",
    "transformers", "transformers.modeling_utils", "transformers.generation.utils",
    "transformers.models.auto.modeling_auto", "transformers.processing_utils", "ray", "ray.actor",
)  # fmt: skip


def run(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Import job["modules"], `jobs` at a time, each within `limit` seconds; yields one line per module."""
    code = Path(job["code"])
    _load_bases(code)
    sys.pycache_prefix, sys.dont_write_bytecode = job["byte_code"], False
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    bodies = {module: partial(_import, module) for module in job["modules"]}
    for module, found in run_forks(bodies, code=code, limit=job["limit"], at_once=job["jobs"]):
        yield {"module": module, **found}


def _import(module: str) -> dict[str, Any]:
    importlib.import_module(module)
    return {}


def _load_bases(code: Path) -> None:
    """Import the heavy libraries that are installed, but none that lies in the tree."""
    sys.dont_write_bytecode = True
    for name in BASES:
        if not (code / name.partition(".")[0]).exists():
            with Caught():
                importlib.import_module(name)
