"""One rank that converts: python run_convert.py JOBS RESULT [KILL]

JOBS is a JSON list of arguments of `convert`, done one after the other. RESULT gets a line of JSON for each: what came
of it, or the error. KILL ends rank 0 with SIGKILL: in the middle of "read", or before "put" in place.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from npu_rl_runtime import converter
from npu_rl_runtime.converter import weights, writing


def _die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_in_the_middle() -> None:
    read, count = weights.Weights.read, iter(range(10))

    def dies(self: Any, name: str) -> Any:
        return _die() if next(count) == 5 else read(self, name)

    weights.Weights.read = dies  # type: ignore[method-assign]


def main(jobs: str, result: str, kill: str = "") -> None:
    if kill and os.environ["RANK"] == "0":
        if kill == "put":
            writing.put_in_place = _die
        else:
            _die_in_the_middle()
    work = json.loads(jobs)
    if len(work) > 1:  # else `convert` makes a process group of its own
        # First: they would keep the group, and its threads, which now and then abort the process at its end.
        importlib.import_module("torch.distributed.checkpoint")
        importlib.import_module("megatron.core.dist_checkpointing.strategies.torch")
        torch.distributed.init_process_group("gloo")
    with Path(result).open("w") as lines:
        for job in work:
            before = _memory("VmRSS")
            Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
            try:
                done: Any = dataclasses.asdict(converter.convert(**job))
            except converter.ConversionError as error:
                done = {"error": str(error)}
            done["peak"] = _memory("VmHWM") - before
            print(json.dumps(done), file=lines, flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _memory(which: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{which}:"))


if __name__ == "__main__":
    main(*sys.argv[1:])
