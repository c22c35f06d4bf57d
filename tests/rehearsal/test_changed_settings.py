"""Settings that a rehearsal changes: each differing key is in a line of its report."""

from __future__ import annotations

from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.rehearsal.run_differences.changed_settings import changed_settings
from npu_rl.rehearsal.scale_rollout import scale_for_rollout
from npu_rl.rehearsal.training_checks.interrupted_training import SAVED, TWICE, with_checkpoints


def test_the_flagships_changes_are_told_with_both_values() -> None:
    recipe = load_recipe("deepseek-r1-zero-256die", []).recipe
    small = scale_for_rollout(recipe, "x", "expert")
    lines = {line.partition(": ")[0]: line for line in changed_settings(recipe, small)}
    for section, change in (
        ("optimizer", "warmup_steps 4 for unset"),
        ("overrides", "actor_rollout_ref.actor.optim.use_checkpoint_opt_param_scheduler true for unset"),
        ("model", "remove_padding false for unset"),
        ("logging", "validate_first false for true"),
        ("actor", "transformer.moe_shared_expert_overlap false for unset"),
        ("actor", "transformer.recompute_num_layers 1 for 8"),
        ("rollout", "eager true for false"),
        ("steps", "16 for 100"),
    ):
        assert change in lines[section].partition(": ")[2].split("; ")
    assert changed_settings(recipe, recipe.model_copy(update={"name": "x", "device": "cpu"})) == []


def test_checkpoints_and_validations_are_told_whether_it_is_interrupted_or_not() -> None:
    recipe = load_recipe("deepseek-r1-zero-256die", []).recipe
    small = scale_for_rollout(recipe, "x", "pipeline")
    recipe = recipe.model_copy(update={"checkpoint": recipe.checkpoint.model_copy(update={"every": 20})})
    assert small.steps > SAVED + TWICE
    plain = "; ".join(changed_settings(recipe, small))
    assert "every -1 for 20" in plain and "validate_every -1 for 5" in plain
    interrupted = "; ".join(changed_settings(recipe, with_checkpoints(small, SAVED)))
    assert f"every {SAVED} for 20" in interrupted and f"validate_every {SAVED + 1} for 5" in interrupted
    short = small.model_copy(update={"steps": SAVED + TWICE})
    assert with_checkpoints(short, SAVED) is short
