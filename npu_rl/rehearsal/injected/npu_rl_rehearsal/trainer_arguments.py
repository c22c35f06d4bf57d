"""The arguments that cann-recipes-train's workers pass to Megatron, for the layout of a rehearsal.

Megatron 0.8 with MindSpeed 2.0.0 and MindSpeed-LLM 2.0.0 reads them from one global object while it forms its groups.
They are made as a worker makes them: by verl_patches' own translation of the trainer's configuration file, parsed and
validated by MindSpeed-LLM. Stood in for is the tokenizer, which groups don't need.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from . import mindspeed_rl_arguments

MODULE = "verl_patches.train_engine.initialize_training"
_CONFIGURATION = "verl/trainer/config/ppo_mindspeed_trainer.yaml"
# What DeepSeek-V3's config.json has beside the defaults of transformers' class, as far as the translation reads it.
_MODEL = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "max_position_embeddings": 163840,
    "rope_theta": 10000,
    "aux_loss_alpha": 0.0001,
    "moe_layer_freq": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "seq_aux": True,
}


def has_them(code: Path) -> bool:
    """Return whether the tree's trainer has one global object of arguments."""
    return mindspeed_rl_arguments.has_them(code) or _is_of_cann_recipes(code)


def _is_of_cann_recipes(code: Path) -> bool:
    return code.joinpath(*MODULE.split(".")).with_suffix(".py").is_file()


def set_arguments(job: dict[str, Any]) -> None:
    """Create the arguments for the sizes of `job`, as rank 0 of its world, and set them in Megatron."""
    if mindspeed_rl_arguments.has_them(Path(job["code"])):
        mindspeed_rl_arguments.set_arguments(job)
        return
    trainer: Any = mindspeed_rl_arguments.import_as_rank_0(job, MODULE)
    arguments = trainer.translate_verl_train_configs_to_megatron(_configuration(job))
    mindspeed_rl_arguments.initialize(trainer, arguments)


def _configuration(job: dict[str, Any]) -> Any:
    omegaconf: Any = importlib.import_module("omegaconf")
    sizes, layers = job["train"], job["stage_layers"]
    folder = Path.cwd() / "model"
    folder.mkdir()
    published: Any = importlib.import_module("transformers").DeepseekV3Config
    model = {**published().to_dict(), **_MODEL, "num_hidden_layers": sum(layers)}
    (folder / "config.json").write_text(json.dumps(model, default=str), encoding="utf-8")
    # `train` has proven the tree, or its user allowed the drift: no bounds on what it has, since its code runs, too.
    config = omegaconf.OmegaConf.load(Path(job["code"]) / _CONFIGURATION)
    actor = "actor_rollout_ref.actor"
    for key, value in {
        "algorithm.adv_estimator": "grpo",
        "actor_rollout_ref.model.path": str(folder),
        f"{actor}.ppo_micro_batch_size_per_gpu": 1,
        f"{actor}.megatron.tensor_model_parallel_size": sizes["tensor"],
        f"{actor}.megatron.pipeline_model_parallel_size": sizes["pipeline"],
        f"{actor}.megatron.context_parallel_size": sizes["context"],
        f"{actor}.megatron.expert_model_parallel_size": sizes["expert"],
        f"{actor}.megatron.pipeline_parallel_num_layer_list": list(layers),
        f"{actor}.megatron.sequence_parallel": sizes["tensor"] > 1,
    }.items():
        omegaconf.OmegaConf.update(config, key, value)
    return config
