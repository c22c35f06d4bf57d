"""The trainer's keys that npu-rl writes itself, so that a run is where its record says it is."""

from __future__ import annotations

from collections.abc import Mapping

from npu_rl.recipes.schema import Recipe

OWNED: Mapping[str, str] = {
    "custom_reward_function.name": "write it as `reward: {function: FILE.py:NAME}`",
    "custom_reward_function.path": "write it as `reward: {function: FILE.py:NAME}`",
    **dict.fromkeys(
        ("hydra.run", "hydra.sweep", "hydra.output_subdir", "hydra.mode", "hydra.job.chdir"),
        "npu-rl runs the trainer once, in the run's folder",
    ),
    **dict.fromkeys(
        ("hydra.launcher", "hydra.sweeper", "hydra.callbacks"), "it names code that runs beside the trainer"
    ),
    "trainer.default_local_dir": "npu-rl puts checkpoints into the run's folder",
    "trainer.device": "write it as `device:`",
    "trainer.experiment_name": "npu-rl takes the run's name, the recipe's `name`",
    "trainer.resume_from_path": "npu-rl resumes a run with --resume",
    "trainer.resume_mode": "npu-rl resumes a run with --resume",
    "trainer.rollout_data_dir": "set `logging: {samples: true}`; npu-rl writes samples to the run's folder",
    "trainer.validation_data_dir": "set `logging: {samples: validation}`; npu-rl writes them to the run's folder",
}
"""Key -> what to do instead. `overrides` may not name them, or what is below them; render writes them."""

_MADE = {
    "model.make": {"actor_rollout_ref.model.path": "`model: {make: ...}` makes the model and names it"},
    "data.make": {
        "data.train_files": "`data: {make: ...}` makes the data and names it",
        "data.val_files": "`data: {make: ...}` makes the data and names it",
    },
}


def owned_by(key: str, ours: Mapping[str, str]) -> str | None:
    """What to do instead of setting a key that is npu-rl's; None for one that is not."""
    parts = key.split(".")
    above = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return next((ours[name] for name in above if name in ours), None)


def owned(recipe: Recipe) -> dict[str, str]:
    """OWNED, with the keys that are npu-rl's because of what the recipe has it make."""
    result = dict(OWNED)
    if recipe.model.make:
        result |= _MADE["model.make"]
    if recipe.data.make:
        result |= _MADE["data.make"]
    return result
