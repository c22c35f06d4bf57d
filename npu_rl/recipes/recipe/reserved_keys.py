"""The trainer's keys that only npu-rl sets, so that a run's files are where its record expects them."""

from __future__ import annotations

from collections.abc import Mapping

from npu_rl.recipes.recipe.schema import Recipe

OF_HYDRA: Mapping[str, str] = {
    **dict.fromkeys(
        ("hydra.run", "hydra.sweep", "hydra.output_subdir", "hydra.mode", "hydra.job.chdir"),
        "npu-rl runs the trainer once, in the run's folder",
    ),
    **dict.fromkeys(
        ("hydra.launcher", "hydra.sweeper", "hydra.callbacks"), "it names code that runs beside the trainer"
    ),
    "hydra.searchpath": "npu-rl makes the search path of the configuration absolute; "
    "set `trainer: {config_path: FOLDER}` for a configuration in another folder of the code",
}
"""What to do instead of setting each key of Hydra itself, or one below it, in `overrides`."""

RESERVED: Mapping[str, str] = {
    **OF_HYDRA,
    "custom_reward_function.name": "write it as `reward: {function: FILE.py:NAME}`",
    "custom_reward_function.path": "write it as `reward: {function: FILE.py:NAME}`",
    "trainer.default_local_dir": "npu-rl puts checkpoints into the run's folder",
    "trainer.device": "write it as `device:`",
    "trainer.experiment_name": "npu-rl takes the run's name, the recipe's `name`",
    "trainer.resume_from_path": "npu-rl resumes a run with --resume",
    "trainer.resume_mode": "npu-rl resumes a run with --resume",
    "trainer.rollout_data_dir": "set `logging: {samples: true}`; npu-rl writes samples to the run's folder",
    "trainer.validation_data_dir": "set `logging: {samples: validation}`; npu-rl writes them to the run's folder",
}
"""What to do instead of setting each key, or one below it, in `overrides`."""

_RESERVED_BY_MAKE = {
    "model.make": {"actor_rollout_ref.model.path": "`model: {make: ...}` makes the model and names it"},
    "data.make": {
        "data.train_files": "`data: {make: ...}` makes the data and names it",
        "data.val_files": "`data: {make: ...}` makes the data and names it",
    },
}


def find_replacement(key: str, reserved: Mapping[str, str]) -> str | None:
    """Return what to do instead of setting a reserved key; None for other keys."""
    parts = key.split(".")
    above = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return next((reserved[name] for name in above if name in reserved), None)


def reserved_keys(recipe: Recipe) -> dict[str, str]:
    """Return the reserved keys, including those of fixtures that npu-rl makes for this recipe."""
    if recipe.trainer.keys is not None:
        folder = recipe.trainer.keys.checkpoint.folder or ()
        return {**OF_HYDRA, **dict.fromkeys(folder, "npu-rl puts checkpoints into the run's folder")}
    result = dict(RESERVED)
    if recipe.model.make:
        result |= _RESERVED_BY_MAKE["model.make"]
    if recipe.data.make:
        result |= _RESERVED_BY_MAKE["data.make"]
    return result
