"""The driver of a run: connect to Ray as told, then run the trainer's own entry point, unchanged.

    python -m npu_rl_driver MODULE [argument ...]

NPU_RL_RAY holds the keyword arguments of `ray.init` as JSON. verl calls ray.init itself only if nobody has,
and would then take whatever address, folder and resources it finds; a run's Ray is its own instead.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from typing import Any


def main() -> None:
    module, *arguments = sys.argv[1:]
    connect(json.loads(os.environ["NPU_RL_RAY"]))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def connect(options: dict[str, Any]) -> None:
    """`ray.init` with the trainer's own environment for workers, where it has one."""
    print("npu-rl: starting Ray", flush=True)
    import ray

    ray.init(**options, runtime_env=_runtime_env(), log_to_driver=True)
    print("npu-rl: Ray is up", flush=True)


def _runtime_env() -> dict[str, Any]:
    """What verl's main_ppo passes to ray.init (verl/trainer/constants_ppo.py at 0.5.0); older trees have none."""
    try:
        from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("verl"):
            raise
        return {}
    environment: dict[str, Any] = get_ppo_ray_runtime_env()
    return environment


if __name__ == "__main__":
    main()
