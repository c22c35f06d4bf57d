"""Import every module of a job in its own fork of a process that has imported the trainer's, as a run has by then.

What the trainer's module imports is loaded once, and modules that import each other, as Megatron-core 0.8's, are found
as they are in a run. Byte code is written to a folder of the job, never beside the sources.
"""

from __future__ import annotations

import importlib
import resource
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from .forks import run_body, run_forks


def run(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Import job["modules"], the trainer's first, `jobs` at a time and within `limit` seconds each.

    Yields one line per module.
    """
    code = Path(job["code"])
    sys.pycache_prefix, sys.dont_write_bytecode = job["byte_code"], False
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    bodies = {module: partial(_import, module) for module in job["modules"]}
    entry = job["modules"][0]
    yield {"module": entry, **run_body(bodies.pop(entry), code)}
    for module, found in run_forks(bodies, code=code, limit=job["limit"], at_once=job["jobs"]):
        yield {"module": module, **found}


def _import(module: str) -> dict[str, Any]:
    importlib.import_module(module)
    return {}
