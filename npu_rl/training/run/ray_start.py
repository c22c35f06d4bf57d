"""The Ray cluster of a recipe: its start commands, and the requirements on a manually started one."""

from __future__ import annotations

import json
from typing import Any

from npu_rl.common.yaml_documents.text_checks import split_address
from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.recipes.recipe.trainer_command import node_resources


def start_commands(recipe: Recipe, python: str) -> tuple[list[str], list[str]]:
    """Return the commands that start Ray on the head and on another node, without the node's own address."""
    address = recipe.cluster.address or ""
    ray = [python, "-m", "ray.scripts.scripts", "start"]
    offers = [
        f"--{name.replace('_', '-')}={_option_text(value)}" for name, value in node_resources(recipe).items()
    ]
    _, port = split_address(address)
    return [*ray, "--head", f"--port={port}", *offers], [*ray, f"--address={address}", *offers]


def _option_text(value: object) -> str:
    return str(value) if isinstance(value, int) else json.dumps(value)


def ray_needs(recipe: Recipe) -> dict[str, Any] | None:
    """Return the requirements on a running Ray; None if the run starts its own.

    That is `nodes` nodes with `count` of `resource` each, and in all one CPU for each rank and one for the trainer, as
    verl asks for (`{"CPU": 1, "NPU": 1}` a rank, verl/single_controller/ray/base.py@0.5.0); it waits without end for
    what is missing.
    """
    if not recipe.cluster.address:
        return None
    return {
        "resource": "GPU" if recipe.device == "cuda" else "NPU",
        "count": recipe.cluster.dies,
        "nodes": recipe.cluster.nodes,
        "cpus": 0 if recipe.has_own_keys else recipe.cluster.world + 1,
        "recipe": recipe.name,
        "address": recipe.cluster.address,
    }
