"""A recipe as what is run: an argument list for the trainer's own entry point, and every node's environment.

Never a shell string. Keys npu-rl sets by itself (`OWNED`) are about where a run's files go and how it is
resumed; a recipe has its own words for those.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_rl.recipes.check import config_name, flat
from npu_rl.recipes.hydra_text import argument, hydra_text
from npu_rl.recipes.schema import Recipe
from npu_rl.recipes.settings import Setting, merged, settings

_A, _F = "actor_rollout_ref.actor.megatron", "actor_rollout_ref.ref.megatron"


@dataclass(frozen=True)
class Folders:
    """Where a run's things are, all absolute. made: what `model.make` and `data.make` gave.

    on_path: folders before the code on PYTHONPATH. recipe: the recipe's folder, for paths that begin with ./
    """

    code: Path
    run: Path
    attempt: Path
    made: Path
    pycache: Path
    recipe: Path
    ray: Path
    on_path: tuple[Path, ...]


@dataclass(frozen=True)
class Command:
    """What is run. settings: `key=value` or `+key=value` for the trainer. config: its Hydra configuration.

    environment: what npu-rl sets, the same on every node. hydra: the folder Hydra writes what it composed into.
    """

    python: str
    module: str
    config: str
    settings: list[str]
    environment: dict[str, str]
    hydra: Path

    @property
    def argv(self) -> list[str]:
        """The driver's whole argument list."""
        where = [f"--config-name={self.config}", f"hydra.run.dir={hydra_text(str(self.hydra))}"]
        return [self.python, "-m", "npu_rl_driver", self.module, *where, *self.settings]


def render(
    recipe: Recipe,
    folders: Folders,
    *,
    run_name: str,
    run_id: str,
    python: str,
    known: Collection[str],
    manifest_env: Mapping[str, str],
    resume: bool = False,
    rollout_standin: bool = False,
) -> Command:
    """The command of one attempt. known: keys of the trainer's configuration files; others are added by `+`.

    manifest_env: the lock's environment, which the recipe's own goes over. rollout_standin: rehearse with a
    rollout that has weights of its own.
    """
    own = _own_settings(recipe, folders, run_name, resume)
    final = merged([*flat(settings(recipe)), *own])
    return Command(
        python=python,
        module=recipe.trainer.module,
        config=config_name(recipe),
        settings=[argument(s.key, s.value, s.key in known) for s in final.values()],
        environment=_environment(recipe, folders, run_id, manifest_env, rollout_standin),
        hydra=folders.attempt / "hydra",
    )


def _own_settings(recipe: Recipe, folders: Folders, run_name: str, resume: bool) -> list[Setting]:
    made = {
        "trainer.experiment_name": run_name,
        "trainer.default_local_dir": str(folders.run / "checkpoints"),
        "trainer.resume_mode": "auto" if resume else "disable",
        # An epoch has at least one step, so the number of steps alone decides when it ends.
        "trainer.total_epochs": recipe.steps,
        # verl asks Ray for "GPU" on cuda and for "NPU" otherwise; it has no word for a CPU.
        "trainer.device": "npu",
        **_places(recipe, folders),
    }
    if recipe.logging.samples:
        made["trainer.rollout_data_dir"] = str(folders.run / "samples")
    if recipe.megatron and recipe.model.checkpoint:
        made[f"{_A}.use_dist_checkpointing"] = True
        made[f"{_F}.use_dist_checkpointing"] = True
    if "console" not in recipe.logging.backends:
        made["trainer.logger"] = ["console", *recipe.logging.backends]
    return [Setting(name, value) for name, value in made.items()]


def _places(recipe: Recipe, folders: Folders) -> dict[str, Any]:
    """Paths, made absolute: Ray's workers have another working folder than the driver."""
    here = folders.recipe
    made: dict[str, Any] = {}
    if recipe.model.make:
        made["actor_rollout_ref.model.path"] = str(folders.made / "model")
    elif recipe.model.path:
        made["actor_rollout_ref.model.path"] = _absolute(recipe.model.path, here)
    if recipe.data.make:
        made["data.train_files"] = str(folders.made / "train.parquet")
        made["data.val_files"] = str(folders.made / "test.parquet")
    else:
        made["data.train_files"] = [_absolute(path, here) for path in recipe.data.train or []]
        made["data.val_files"] = [_absolute(path, here) for path in recipe.data.test or []]
    if recipe.megatron and recipe.model.checkpoint:
        for part in (_A, _F):
            made[f"{part}.dist_checkpointing_path"] = _absolute(recipe.model.checkpoint, here)
    if recipe.reward.function:
        file, name = split_function(recipe.reward.function)
        ours = not file.startswith(("./", "../", "/", "~"))
        made["custom_reward_function.path"] = str(folders.code / file) if ours else _absolute(file, here)
        made["custom_reward_function.name"] = name
    return made


def split_function(function: str) -> tuple[str, str]:
    """FILE.py:NAME as its two parts; NAME is compute_score if it is left out."""
    file, colon, name = function.rpartition(":")
    return (file, name) if colon else (name, "compute_score")


def _absolute(path: str, base: Path) -> str:
    """./x and ../x from `base`, ~/x from home; anything else (/x, hdfs://x, a name on a hub) is as it is."""
    if path.startswith(("./", "../")):
        return os.path.normpath(base / path)
    return str(Path(path).expanduser()) if path.startswith("~") else path


def _environment(
    recipe: Recipe, folders: Folders, run_id: str, manifest_env: Mapping[str, str], rollout_standin: bool
) -> dict[str, str]:
    paths = [*map(str, folders.on_path), str(folders.code)]
    given = os.environ.get("PYTHONPATH", "")  # CANN's set_env.sh puts its own packages there
    environment = {
        "HYDRA_FULL_ERROR": "1",
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TENSORBOARD_DIR": str(folders.run / "tensorboard"),
        **(_cpu_environment() if recipe.device == "cpu" else {}),
        **_network(recipe),
        **manifest_env,
        **recipe.env,
        **{switch(slug): "1" if on else "0" for slug, on in recipe.adaptations.items()},
        "PYTHONPATH": os.pathsep.join(
            [*paths, *(p for p in given.split(os.pathsep) if p and p not in paths)]
        ),
        # Byte code beside the sources could hide a change of theirs.
        "PYTHONPYCACHEPREFIX": str(folders.pycache),
        "PYTHONUNBUFFERED": "1",
        "NPU_RL_RUN": run_id,
        "NPU_RL_USAGE": str(folders.attempt / "usage"),
        "NPU_RL_SEED": str(recipe.seed),
        "NPU_RL_RAY": json.dumps(ray_options(recipe, folders.ray)),
    }
    if recipe.megatron:
        environment.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    if recipe.device == "cpu" and recipe.megatron:
        environment["TORCHDYNAMO_DISABLE"] = (
            "1"  # there is no compiler, and counting calls would stop it anyway
        )
    if recipe.device == "cpu":
        environment["NPU_RL_STANDINS"] = "cpu,rollout" if rollout_standin else "cpu"
    return environment


def _cpu_environment() -> dict[str, str]:
    """One thread per process, loopback only, no accelerator, nothing from the network."""
    return {
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": "lo0" if os.uname().sysname == "Darwin" else "lo",
        "WANDB_MODE": "disabled",
    }


def _network(recipe: Recipe) -> dict[str, str]:
    if not recipe.cluster.interface:
        return {}
    names = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
    return dict.fromkeys(names, recipe.cluster.interface)


def ray_options(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Keyword arguments of ray.init. One machine starts a Ray of its own and ends it with the run.

    folder: Ray's own folder; its path must be short, since sockets lie in it.
    """
    if recipe.cluster.address:
        return {"address": recipe.cluster.address}
    options: dict[str, Any] = {
        "address": "local",  # a RAY_ADDRESS of the user's must not divert the run
        "include_dashboard": False,
        "resources": {"NPU": recipe.cluster.dies},
        "_temp_dir": str(folder),
    }
    if recipe.device == "cpu":
        # A worker per die, the trainer, and two for what it starts beside them.
        options |= {
            "num_cpus": recipe.cluster.world + 3,
            "num_gpus": 0,
            "object_store_memory": 256 * 1024 * 1024,
            "_node_ip_address": "127.0.0.1",
        }
    return options


def switch(slug: str) -> str:
    """The variable that turns an adaptation on or off."""
    return "NPU_RL_" + slug.upper().replace("-", "_")
