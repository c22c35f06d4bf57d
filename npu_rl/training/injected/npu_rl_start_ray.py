"""Start Ray for a run, or join the cluster's, and compare every node with the driver.

verl calls `ray.init` only if nobody has, and would then use whatever address, folder and resources it finds.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import time
from collections.abc import Iterator
from typing import Any

import npu_rl_nodes
import npu_rl_ray_needs

_RELEASE_SECONDS = 10  # for which a job that has just ended may still hold its devices


def start_ray(options: dict[str, Any], run: dict[str, Any]) -> None:
    """Call `ray.init` with the trainer's environment overridden by the run's, and compare all nodes with the driver.

    Raises Refused for a Ray that lacks what the recipe needs, and for nodes that differ.
    """
    print("npu-rl: starting Ray", flush=True)
    import ray

    # Ray's log thread imports it with its first line. At the same time as the trainer's imports it was incomplete:
    # "cannot import name 'AutoscalerSummary'" (ray/_private/worker.py, filter_autoscaler_events, at 2.42.1).
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("ray.autoscaler.v2.utils")

    values = npu_rl_nodes.run_variables(run, os.environ)
    trainer_env, run_env = _trainer_runtime_env(), npu_rl_nodes.runtime_env(run, values)
    runtime_env = {
        **trainer_env,
        **run_env,
        "env_vars": {**trainer_env.get("env_vars", {}), **run_env["env_vars"]},
    }
    if options["address"] != "local":
        npu_rl_nodes.require_sendable(values)
        npu_rl_nodes.require_head(options["address"])
    with _unseeded():
        ray.init(**options, runtime_env=runtime_env, log_to_driver=True)
    deadline = time.monotonic() + _RELEASE_SECONDS
    free = ray._private.state.available_resources_per_node  # as verl does, verl/single_controller/ray/base.py
    while refusal := npu_rl_ray_needs.lacking(ray.nodes(), run.get("needs"), free()):
        if time.monotonic() > deadline:
            raise npu_rl_nodes.Refused(**refusal)
        time.sleep(1)
    print("npu-rl: comparing the nodes", flush=True)
    npu_rl_nodes.compare(run, values)
    print("npu-rl: Ray is up", flush=True)


@contextlib.contextmanager
def _unseeded() -> Iterator[None]:
    """Give Python's random numbers no seed for a while.

    Ray takes the id by which a driver subscribes to its workers' logs from them (_raylet.pyx, _GcsSubscriber, at
    2.42.1). Two runs of one seed on one Ray had one id, so the end of the second ended the log of the first.
    """
    state = random.getstate()
    random.seed()
    try:
        yield
    finally:
        random.setstate(state)


def _trainer_runtime_env() -> dict[str, Any]:
    """Return the runtime_env of verl's main_ppo: a function's result in 0.5.0, a constant before; else {}.

    verl/trainer/constants_ppo.py at cccc2ef2 (0.4.1.dev) has PPO_RAY_RUNTIME_ENV alone.
    """
    try:
        constants: Any = importlib.import_module("verl.trainer.constants_ppo")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("verl"):
            raise
        return {}
    if hasattr(constants, "get_ppo_ray_runtime_env"):
        return dict(constants.get_ppo_ray_runtime_env())
    return dict(getattr(constants, "PPO_RAY_RUNTIME_ENV", {}))
