"""Show whether cann-recipes-train bcd3be7's initialize_megatron compiles files in the tree.

It ends with `_compile_dependencies` (verl_patches/train_engine/initialize_training.py:332@bcd3be7), MindSpeed's, which
runs `make -C megatron/core/datasets` on rank 0 (megatron/core/datasets/utils.py:21@core_r0.8.0) and leaves helpers.*.so
there.

Real: the whole start on one gloo rank, with arguments that the recipe's own translation makes and MindSpeed-LLM
validates. `make` is a script that notes where it is called and creates nothing. num_layer_list and the fused MLP are
left out, which MindSpeed-LLM refuses without pipeline and sequence parallelism.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from pathlib import Path
from typing import Any

from witness_common import make_apex, only_rank, show

STAND_INS = ("npu",)
ENVIRONMENT = {"VLLM_VERSION": "0.9.1"}

MAKE = """#!/bin/sh
while [ $# -gt 0 ]; do [ "$1" = -C ] && cd "$2"; shift; done
pwd -P >> "$0.calls"
"""


def start(code: Path) -> None:
    """Start Megatron as in a worker, up to the end of initialize_megatron."""
    from npu_rl_rehearsal import trainer_arguments

    trainer: Any = importlib.import_module(trainer_arguments.MODULE)
    whole = trainer.initialize_megatron

    def initialize(config: Any, **_: Any) -> None:
        """Do the steps after parsing the arguments, which a layout rehearsal skips."""
        config.num_layer_list = config.use_fused_mlp = None
        whole(config=config, allow_no_cuda=True)

    trainer.initialize_megatron = initialize
    one = dict.fromkeys(("tensor", "pipeline", "context", "expert"), 1)
    trainer_arguments.set_arguments({"code": str(code), "world": 1, "stage_layers": [4], "train": one})


def main() -> dict[str, Any]:
    """Return the folders of the tree in which the start runs `make`."""
    from torch_npu.contrib import transfer_to_npu  # noqa: F401  Megatron asks for a CUDA device

    make_apex()
    code = Path.cwd().resolve()
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"  # as the manifest sets it; Megatron refuses another
    with tempfile.TemporaryDirectory() as folder, only_rank():
        make = Path(folder, "make")
        make.write_text(MAKE)
        make.chmod(0o755)
        os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
        os.chdir(folder)  # the arguments' config.json is written there
        start(code)
        from megatron.core import parallel_state

        started = parallel_state.model_parallel_is_initialized()
        calls = Path(f"{make}.calls")
        called = [Path(line) for line in calls.read_text().splitlines()] if calls.exists() else []
        os.chdir(code)
    within = [str(path.relative_to(code)) for path in called if path.is_relative_to(code)]
    return {"fault": bool(within), "started": started, "compiled in": within}


if __name__ == "__main__":
    show(main)
