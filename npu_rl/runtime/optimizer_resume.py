"""Adaptation optimizer-resume: the optimizer can be loaded into a new process, and resumes at its step.

Megatron-core 0.8.0 saves the main parameters and both moments of Adam, but not the step: Apex's FusedAdam and
MindSpeed's AdamW keep it in their groups, which verl 54c9b73 does not save either. Each optimizer of this stack lacks
something else:

- MindSpeed's AdamW (mindspeed/optimizer/adamw.py:117@v2.0.0_core_r0.8.0) creates its moments in the first step, so
  loading ends with KeyError 'exp_avg' (megatron/core/optimizer/distrib_optimizer.py:1284@core_r0.8.0); `make_moments`
  creates them. Its step is `group["step"]`.
- With swap_optimizer MindSpeed's SwapDistributedOptimizer creates the moments when it is built, and its swap_adamw_step
  keeps the step beside them, in `state[parameter]["step"]` (mindspeed/core/optimizer/swap_optimizer.py:556). Loading
  works, but the next update has the bias correction of a new optimizer's first step.

So the step is saved and restored in both places.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

from .switches import enabled
from .used import count

SLUG = "optimizer-resume"


def make_moments(optimizer: Any) -> None:
    """Create the moments that a new optimizer lacks. Call it before `optimizer.load_parameter_state`.

    optimizer: Megatron-core's distributed optimizer, or a chain of them.
    """
    if enabled(SLUG):
        for one in _each(optimizer):
            one.init_state_fn(one.optimizer)


def save_steps(optimizer: Any, path: str) -> None:
    """Write this rank's steps beside its optimizer file `path`."""
    if not enabled(SLUG):
        return
    import torch

    groups, states = _places(optimizer)
    torch.save([[place.get("step") for place in places] for places in (groups, states)], _file(path))
    count(SLUG)


def load_steps(optimizer: Any, path: str) -> None:
    """Restore the steps that `save_steps` wrote, after the parameter state was loaded.

    Raises FileNotFoundError for a checkpoint without them, and ValueError for one with another layout.
    """
    if not enabled(SLUG):
        return
    import torch

    if not Path(_file(path)).exists():
        raise FileNotFoundError(
            f"{_file(path)}: missing. The checkpoint was saved with NPU_RL_OPTIMIZER_RESUME=0 or without npu-rl; the "
            f"optimizer would restart at step 1. NPU_RL_OPTIMIZER_RESUME=0 loads as upstream does."
        )
    places = _places(optimizer)
    saved = torch.load(_file(path), map_location="cpu")
    if [len(steps) for steps in saved] != [len(place) for place in places]:
        raise ValueError(f"{_file(path)}: saved with another layout: groups and parameters differ in number")
    for place, step in zip(chain(*places), chain(*saved), strict=True):
        if step is not None:
            # swap_adamw_step makes its step where the moments are computed (swap_optimizer.py:559)
            place["step"] = step.to(place["exp_avg"].device) if isinstance(step, torch.Tensor) else step
    count(SLUG)


def _each(optimizer: Any) -> list[Any]:
    return list(getattr(optimizer, "chained_optimizers", [optimizer]))


def _places(optimizer: Any) -> tuple[list[Any], list[Any]]:
    """Return all inner optimizers' groups and parameter states, in an order that depends on the layout only."""
    inner = [one.optimizer for one in _each(optimizer)]
    groups = [group for one in inner for group in one.param_groups]
    states = [one.state[value] for one in inner for group in one.param_groups for value in group["params"]]
    return groups, states


def _file(path: str) -> str:
    return f"{path}.steps"
