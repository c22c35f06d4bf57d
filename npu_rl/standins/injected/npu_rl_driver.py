"""The driver of a run: connect to Ray as told, then run the trainer's own entry point, unchanged.

    python -m npu_rl_driver MODULE [argument ...]

NPU_RL_RAY holds the keyword arguments of `ray.init` as JSON. verl calls ray.init itself only if nobody has,
and would then take whatever address, folder and resources it finds; a run's Ray is its own instead.
NPU_RL_NODES says, also as JSON, what goes to every node with the run and is compared there (npu_rl_nodes.py).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import sys
from typing import Any

import npu_rl_nodes

_REFUSED = 3  # the exit status of npu-rl itself for a host that is not what it should be


def main() -> None:
    module, *arguments = sys.argv[1:]
    told = json.loads(os.environ["NPU_RL_NODES"])
    try:
        connect(json.loads(os.environ["NPU_RL_RAY"]), told)
    except npu_rl_nodes.Refused as refused:
        npu_rl_nodes.note(told, refused)
        print("\n".join(f"npu-rl: {text}" for text in refused.told.values()), file=sys.stderr, flush=True)
        sys.exit(_REFUSED)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def connect(options: dict[str, Any], told: dict[str, Any]) -> None:
    """`ray.init` with the run's environment for workers over the trainer's own; then hold every node against it."""
    print("npu-rl: starting Ray", flush=True)
    import ray

    # Ray's log thread imports it with its first line. Beside an import of the trainer's it came out half: "cannot
    # import name 'AutoscalerSummary'" (ray/_private/worker.py, filter_autoscaler_events, at 2.42.1).
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("ray.autoscaler.v2.utils")

    values = npu_rl_nodes.variables(told, os.environ)
    own, ours = _trainers_own(), npu_rl_nodes.runtime_env(told, values)
    runtime_env = {**own, **ours, "env_vars": {**own.get("env_vars", {}), **ours["env_vars"]}}
    if options["address"] != "local":
        npu_rl_nodes.demand_sendable(values)
        npu_rl_nodes.demand_head(options["address"])
    ray.init(**options, runtime_env=runtime_env, log_to_driver=True)
    print("npu-rl: comparing the nodes", flush=True)
    npu_rl_nodes.compare(told, values)
    print("npu-rl: Ray is up", flush=True)


def _trainers_own() -> dict[str, Any]:
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
