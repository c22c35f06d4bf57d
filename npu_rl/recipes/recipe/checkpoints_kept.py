"""The trainer's own number of checkpoints, whose meaning depends on verl's version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.recipes.recipe.trainer_settings import Setting
from npu_rl.recipes.trainer_code.citations import CitedCode, Place

_FOLDER = "verl/utils/checkpoint"
_LEAVES_THE_ONLY_ONE = Place(
    f"{_FOLDER}/checkpoint_manager.py",
    "isinstance(max_ckpt_to_keep, int) and max_ckpt_to_keep > 1",
    ("v0.8.0", "88512193"),
)
_ROOM = "self.ensure_checkpoint_capacity(max_ckpt_to_keep)"
_KEEP = ("checkpoint", "keep")


def saves_before_deleting_the_last(recipe: Recipe, code: CitedCode) -> bool:
    """Return whether a trainer that keeps 1 checkpoint deletes the old one only after saving the next.

    verl does from 1430cb9a0 (#4873, January 2026) on. With 2 and more it goes on to delete down to one less than its
    number before it saves (verl/utils/checkpoint/checkpoint_manager.py:144@v0.8.0).
    """
    backend = "megatron" if recipe.megatron else "fsdp"
    manager = f"{_FOLDER}/{backend}_checkpoint_manager.py"
    return code.has(_LEAVES_THE_ONLY_ONE) and code.has(Place(manager, _ROOM, _LEAVES_THE_ONLY_ONE.read_at))


def settle_checkpoints(
    settings: Mapping[str, Setting], recipe: Recipe, code: CitedCode
) -> dict[str, Setting]:
    """Set the trainer's number of checkpoints for this tree: 1 for `checkpoint.keep: 1` if that is enough.

    Otherwise the number stays one more than the recipe's, as the schema sets it.
    """
    if recipe.checkpoint.keep != 1 or not saves_before_deleting_the_last(recipe, code):
        return dict(settings)
    return {key: replace(one, value=1) if one.path == _KEEP else one for key, one in settings.items()}
