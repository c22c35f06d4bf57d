"""The driver of a run: connect to Ray, then run the trainer's own entry point, unchanged.

    python -m npu_rl_driver MODULE [argument ...]

NPU_RL_RAY has the keyword arguments of `ray.init` as JSON. NPU_RL_NODES says, also as JSON, what is sent to every node
with the run and is compared there (npu_rl_nodes.py).
"""

from __future__ import annotations

import json
import os
import runpy
import sys

import npu_rl_nodes
import npu_rl_start_ray

_HOST_ERROR = 3  # npu-rl's exit status for an unsuitable host


def main() -> None:
    """Connect to Ray and run the trainer. Exits with status 3 if the nodes differ."""
    module, *arguments = sys.argv[1:]
    run = json.loads(os.environ["NPU_RL_NODES"])
    try:
        npu_rl_start_ray.start_ray(json.loads(os.environ["NPU_RL_RAY"]), run)
    except npu_rl_nodes.Refused as refused:
        npu_rl_nodes.record_refusal(run, refused)
        print("\n".join(f"npu-rl: {text}" for text in refused.details.values()), file=sys.stderr, flush=True)
        sys.exit(_HOST_ERROR)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
