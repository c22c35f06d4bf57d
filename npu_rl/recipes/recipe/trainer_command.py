"""Rendering of a recipe: the entry point's argument list, and the environment of every node.

The command is never a shell string. The keys that npu-rl itself sets are about where a run's files lie and how it is
resumed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npu_rl.common import byte_code
from npu_rl.common.callers_path import callers_path
from npu_rl.recipes.recipe.checkpoints_kept import settle_checkpoints
from npu_rl.recipes.recipe.own_keys import run_settings
from npu_rl.recipes.recipe.recipe_paths import absolute, function_file, split_function
from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.recipes.recipe.trainer_settings import (
    Setting,
    config_name,
    engine_setting,
    last_settings,
    settings_of,
)
from npu_rl.recipes.trainer_code.citations import CitedCode
from npu_rl.recipes.trainer_code.config_location import absolute_search_path

_A, _F = "actor_rollout_ref.actor.megatron", "actor_rollout_ref.ref.megatron"
_FILTER = "algorithm.filter_groups"
_UNLIMITED_BATCHES = 100  # for a step, where the filter may go on without end


@dataclass(frozen=True)
class Folders:
    """The folders of a run, all absolute.

    Attributes:
        code: The workspace's code.
        run: The run's folder.
        attempt: The attempt's folder in it.
        fixtures: The tiny model and data of `model.make` and `data.make`.
        byte_code: The key of the run's byte code.
        pycache: The folder for byte code on this host.
        recipe: The recipe's folder, for paths that begin with `./`.
        ray: The folder of a Ray that the run starts; None leaves the choice to Ray.
        on_path: Folders before the code on PYTHONPATH.
    """

    code: Path
    run: Path
    attempt: Path
    fixtures: Path
    byte_code: str
    pycache: Path
    recipe: Path
    ray: Path | None
    on_path: tuple[Path, ...]


# Variables that each node sets for itself: they are not passed from the driver to the other processes of a run.
PER_NODE_VARIABLES = frozenset({"PYTHONPYCACHEPREFIX"})


@dataclass(frozen=True)
class Command:
    """The driver's command and environment.

    Attributes:
        python: The training interpreter.
        module: The trainer's entry point.
        config: The trainer's Hydra configuration.
        config_path: The folder of that configuration; empty for the one that the module names.
        search_path: `hydra.searchpath` with absolute paths; None to leave it as it is.
        values: The value of each key of the trainer that is set.
        arguments: Arguments of a trainer that is not run through Hydra, with {config} for `config_file`; else None.
        config_file: Where its configuration has to be written.
        settings: `key=value` or `++key=value` for the trainer.
        paths: Folders to prepend to the PYTHONPATH of each process.
        shared: The other variables of every process, the same for each run of the recipe.
        own: Variables of this attempt.
        driver: Variables that only the driver reads.
        hydra: The folder into which Hydra writes the composed configuration.
    """

    python: str
    module: str
    config: str
    settings: list[str]
    paths: tuple[str, ...]
    shared: dict[str, str]
    own: dict[str, str]
    driver: dict[str, str]
    hydra: Path
    config_path: str = ""
    search_path: tuple[str, ...] | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    arguments: tuple[str, ...] | None = None
    config_file: Path = Path("config.yaml")

    @property
    def hydra_overrides(self) -> list[str]:
        """The settings, and Hydra's search path for configuration files."""
        if self.search_path is None:
            return self.settings
        # Without `+`: Hydra takes no other spelling for an override of the search path (config_loader_impl.py @ 1.3.2).
        return [f"hydra.searchpath={hydra_text(self.search_path)}", *self.settings]

    @property
    def argv(self) -> list[str]:
        """The driver's whole argument list."""
        driver = [self.python, "-m", "npu_rl_driver", self.module]
        if self.arguments is not None:
            return [*driver, *(word.replace("{config}", str(self.config_file)) for word in self.arguments)]
        where = [f"--config-path={self.config_path}"] if self.config_path else []
        where += [f"--config-name={self.config}", f"hydra.run.dir={hydra_text(str(self.hydra))}"]
        return [*driver, *where, *self.hydra_overrides]

    @property
    def environment(self) -> dict[str, str]:
        """The variables that npu-rl sets for the driver."""
        given = [entry for entry in callers_path(self.paths) if entry not in self.paths]
        path = os.pathsep.join([*self.paths, *given])
        return {**self.shared, **self.own, **self.driver, "PYTHONPATH": path}


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
    packages: Collection[str] = (),
    secrets: Collection[str] = (),
    search_path: tuple[str, ...] = (),
    groups: Collection[str] = (),
    needs: Mapping[str, Any] | None = None,
) -> Command:
    """Render the command of one attempt.

    Args:
        known: Keys of the trainer's configuration files; others are added with `++`.
        manifest_env: The lock's environment; the recipe's overrides it.
        rollout_standin: Whether to rehearse with a rollout that has weights of its own.
        packages: Packages whose versions have to be the same on all nodes.
        secrets: Names of variables that hold secrets.
        search_path: `hydra.searchpath` of the trainer's configuration.
        groups: The groups in the defaults lists of the trainer's configuration.
        needs: What a running Ray has to have.
    """
    given = settings_of(recipe)
    if recipe.has_own_keys:
        checkpoints = folders.run / "checkpoints"
        final = last_settings(run_settings(recipe, list(given.values()), checkpoints, folders.recipe, resume))
    else:
        own = _own_settings(recipe, folders, run_name, resume)
        own.append(Setting("trainer.total_epochs", recipe.steps * _batches_of_step(given)))
        engine = engine_setting(recipe)
        chosen = [engine] if engine is not None and engine.key in groups else []
        final = last_settings([*chosen, *given.values(), *own])
        final = settle_checkpoints(final, recipe, CitedCode(folders.code))
    shared = _shared_environment(recipe, folders, manifest_env, rollout_standin)
    of_attempt = {
        "TENSORBOARD_DIR": shared.get("TENSORBOARD_DIR", str(folders.run / "tensorboard")),
        "NPU_RL_RUN": run_id,
        "NPU_RL_USAGE": str(folders.attempt / "usage"),
        "NPU_RL_SEED": str(recipe.seed),
    }
    paths = (*map(str, folders.on_path), str(folders.code))
    nodes = {
        "paths": paths,
        "variables": sorted({*shared, *of_attempt} - PER_NODE_VARIABLES),
        "by_hook": sorted(secrets),
        "code": str(folders.code),
        "packages": sorted(packages),
        "record": str(folders.attempt),
        "needs": needs,
    }
    return Command(
        python=python,
        module=recipe.trainer.module,
        config=config_name(recipe),
        settings=[argument(s.key, s.value, s.key in known or s.key in groups) for s in final.values()],
        paths=paths,
        shared=shared,
        own=of_attempt,
        driver={
            "NPU_RL_RAY": json.dumps(ray_options(recipe, folders.ray)),
            "NPU_RL_NODES": json.dumps(nodes),
        },
        hydra=folders.attempt / "hydra",
        config_path=str(folders.code / recipe.trainer.config_path) if recipe.trainer.config_path else "",
        search_path=absolute_search_path(search_path, folders.code),
        values={s.key: s.value for s in final.values()},
        arguments=None if recipe.trainer.arguments is None else tuple(recipe.trainer.arguments),
        config_file=(folders.ray or folders.attempt) / "config.yaml",
    )


def _own_settings(recipe: Recipe, folders: Folders, run_name: str, resume: bool) -> list[Setting]:
    settings = {
        "trainer.experiment_name": run_name,
        "trainer.default_local_dir": str(folders.run / "checkpoints"),
        "trainer.resume_mode": "auto" if resume else "disable",
        # verl asks Ray for "GPU" on cuda and for "NPU" otherwise; it has no value for a CPU.
        "trainer.device": "cuda" if recipe.device == "cuda" else "npu",
        **_path_settings(recipe, folders),
    }
    if recipe.logging.samples:
        settings["trainer.validation_data_dir"] = str(folders.run / "samples" / "validation")
    # The trainer decodes every prompt and response a second time for these, in its driver, while the devices wait
    # (verl/trainer/ppo/ray_trainer.py:1284@55e3c5b).
    if recipe.logging.samples is True:
        settings["trainer.rollout_data_dir"] = str(folders.run / "samples")
    if recipe.megatron and recipe.model.checkpoint:
        settings[f"{_A}.use_dist_checkpointing"] = True
        settings[f"{_F}.use_dist_checkpointing"] = True
    if "console" not in recipe.logging.backends:
        settings["trainer.logger"] = ["console", *recipe.logging.backends]
    return [Setting(name, value) for name, value in settings.items()]


def _batches_of_step(given: Mapping[str, Setting]) -> int:
    """Return the most batches that one step may use.

    An epoch has at least one batch: with so many epochs for each step, the number of steps alone decides when a run
    ends. With DAPO's filter a step generates until enough groups are left, a batch each time
    (recipe/dapo/dapo_ray_trainer.py:236@796871d).
    """
    enable, limit = given.get(f"{_FILTER}.enable"), given.get(f"{_FILTER}.max_num_gen_batches")
    if enable is None or enable.value is not True:
        return 1
    return limit.value if limit and isinstance(limit.value, int) and limit.value > 0 else _UNLIMITED_BATCHES


def _path_settings(recipe: Recipe, folders: Folders) -> dict[str, Any]:
    """Return the settings with absolute paths, since Ray's workers don't share the driver's working folder."""
    here = folders.recipe
    settings: dict[str, Any] = {}
    if recipe.model.make:
        settings["actor_rollout_ref.model.path"] = str(folders.fixtures / "model")
    elif recipe.model.path:
        settings["actor_rollout_ref.model.path"] = absolute(recipe.model.path, here)
    if recipe.data.make:
        settings["data.train_files"] = str(folders.fixtures / "train.parquet")
        settings["data.val_files"] = str(folders.fixtures / "test.parquet")
    else:
        settings["data.train_files"] = [absolute(path, here) for path in recipe.data.train or []]
        settings["data.val_files"] = [absolute(path, here) for path in recipe.data.test or []]
    if recipe.megatron and recipe.model.checkpoint:
        for part in (_A, _F):
            settings[f"{part}.dist_checkpointing_path"] = absolute(recipe.model.checkpoint, here)
    if recipe.reward.function:
        file, name = split_function(recipe.reward.function)
        settings["custom_reward_function.path"] = str(function_file(file, folders.code, here))
        settings["custom_reward_function.name"] = name
    return settings


def _shared_environment(
    recipe: Recipe, folders: Folders, manifest_env: Mapping[str, str], rollout_standin: bool
) -> dict[str, str]:
    collectives = "NCCL_SOCKET_IFNAME" if recipe.device == "cuda" else "HCCL_SOCKET_IFNAME"
    interfaces = (collectives, "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
    environment = {
        "HYDRA_FULL_ERROR": "1",
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        **(_cpu_environment() if recipe.device == "cpu" else {}),
        **dict.fromkeys(interfaces if recipe.cluster.interface else (), str(recipe.cluster.interface)),
        **manifest_env,
        **recipe.env,
        **{switch(slug): "1" if on else "0" for slug, on in recipe.adaptations.items()},
        # Byte code beside the sources could hide a change of theirs. The folder is this host's; others find
        # their own by the key (standins/injected/sitecustomize.py).
        "PYTHONPYCACHEPREFIX": str(folders.pycache),
        byte_code.VARIABLE: folders.byte_code,
        "PYTHONUNBUFFERED": "1",
        # Without it setproctitle, which Ray and vLLM use, overwrites the memory that shows a process's variables, by
        # which the processes of a run are recognized.
        "SPT_NOENV": "1",
    }
    if recipe.megatron:
        environment.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    if recipe.device == "cpu" and recipe.megatron:
        # There is no compiler, and the counting of calls would prevent compilation anyway.
        environment["TORCHDYNAMO_DISABLE"] = "1"
    if recipe.device == "cpu":
        environment["NPU_RL_STANDINS"] = "cpu,rollout" if rollout_standin else "cpu"
    return environment


def _cpu_environment() -> dict[str, str]:
    """Return variables for a CPU: one thread per process, loopback only, no accelerator, no network."""
    return {
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": "lo0" if os.uname().sysname == "Darwin" else "lo",
        "WANDB_MODE": "disabled",
    }


def ray_options(recipe: Recipe, folder: Path | None) -> dict[str, Any]:
    """Return keyword arguments of ray.init. Without an address, Ray is started for the run and ended with it.

    Args:
        folder: Ray's folder; its path must be short, since sockets lie in it. None leaves the choice to Ray.
    """
    if recipe.cluster.address:
        return {"address": recipe.cluster.address}
    return {
        "address": "local",  # a RAY_ADDRESS of the user's must not divert the run
        "include_dashboard": False,
        **({"_temp_dir": str(folder)} if folder else {}),
        **({"_node_ip_address": "127.0.0.1"} if recipe.device == "cpu" else {}),
        **node_resources(recipe),
    }


def node_resources(recipe: Recipe) -> dict[str, Any]:
    """Return a node's resources as arguments of ray.init or, with hyphens, of `ray start`."""
    if recipe.device == "cuda":
        return {"num_gpus": recipe.cluster.dies}
    offers: dict[str, Any] = {"resources": {"NPU": recipe.cluster.dies}}
    if recipe.device == "cpu":
        # A worker per die, the trainer, and two for what the trainer starts beside them.
        offers |= {"num_cpus": recipe.cluster.world + 3, "num_gpus": 0, "object_store_memory": 256 << 20}
    return offers


def switch(slug: str) -> str:
    """Return the variable that turns an adaptation on or off."""
    return "NPU_RL_" + slug.upper().replace("-", "_")


_UNQUOTED = re.compile(r"[A-Za-z_/.][A-Za-z0-9_/.:+@%-]*")
_READ_AS_OTHER = re.compile(r"(?i)true|false|null|[+-]?(nan|inf)|[+-]?[0-9._]+(e[+-]?[0-9_]+)?")


def argument(key: str, value: Any, known: bool) -> str:
    """Return one argument: `key=value`, or `++key=value` for a key the trainer's configuration files don't have.

    `+key=value` would be refused where the key is there by then: of ref's override_transformer_config, which verl's
    files refer to the actor's (megatron_ref.yaml@7aed6b2), once the actor's has it.
    """
    return f"{'' if known else '++'}{key}={hydra_text(value)}"


def hydra_text(value: Any) -> str:
    """Return a value as text that Hydra parses to the same value, of the same type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{hydra_text(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(hydra_text(item) for item in value) + "]"
    return _quoted_text(str(value))


def _quoted_text(value: str) -> str:
    if _UNQUOTED.fullmatch(value) and not _READ_AS_OTHER.fullmatch(value):
        return value
    # A backslash before a quote is the only escape; others stay as they are, so a run before a quote doubles.
    quoted = re.sub(r"(\\*)'", lambda match: match[1] * 2 + r"\'", value)
    trailing = len(quoted) - len(quoted.rstrip("\\"))
    return "'" + quoted + "\\" * trailing + "'"
