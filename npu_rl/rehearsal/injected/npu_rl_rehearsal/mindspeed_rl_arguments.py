"""The arguments that MindSpeed-RL's workers give Megatron, for the layout of a rehearsal.

Megatron 0.8 with MindSpeed and MindSpeed-LLM reads them from one global object while it forms its groups. They are
made by the trainer's own `initialize_megatron` (cli/train_grpo.py@62e9928) from its published configuration, with the
sizes of the recipe. Stood in for is the tokenizer, which groups don't need.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

_TRAINER = "cli.train_grpo"
_CONFIGURATION = "configs/grpo_qwen25_7b_A3.yaml"
_MODEL = "qwen25_7b"
ROLLOUT = "mindspeed_rl.models.rollout.vllm_adapter.vllm_parallel_state"
"""The module that forms the groups of vLLM in place of vLLM's own function."""


def has_them(code: Path) -> bool:
    """Return whether the tree's trainer creates its arguments as MindSpeed-RL does."""
    return (code / "mindspeed_rl").is_dir() and code.joinpath(*_TRAINER.split(".")).with_suffix(
        ".py"
    ).is_file()


def set_arguments(job: dict[str, Any]) -> None:
    """Create the arguments for the sizes of `job`, as rank 0 of its world, and set them in Megatron."""
    trainer = import_as_rank_0(job, _TRAINER)
    initialize(trainer, _arguments(job))


def import_as_rank_0(job: dict[str, Any], module: str) -> Any:
    """Import a trainer's module as rank 0 of the job's world."""
    os.environ.update({"WORLD_SIZE": str(job["world"]), "RANK": "0", "LOCAL_RANK": "0"})
    return importlib.import_module(module)


def initialize(trainer: Any, arguments: Any) -> None:
    """Set the arguments in Megatron with a trainer's own function, without a tokenizer."""
    importlib.import_module("mindspeed_llm.training.arguments")
    variables: Any = importlib.import_module("megatron.training.global_vars")
    variables._build_tokenizer = lambda _arguments: None
    trainer.initialize_megatron(config=arguments, allow_no_cuda=True, skip_mpu_initialization=True)


def _arguments(job: dict[str, Any]) -> Any:
    omegaconf: Any = importlib.import_module("omegaconf")
    configs: Any = importlib.import_module("mindspeed_rl.config_cls.megatron_config")
    code, sizes = Path(job["code"]), job["train"]
    # `train` has proven the tree, or its user allowed the drift: no bounds on what it has, since its code runs, too.
    published = omegaconf.OmegaConf.load(code / _CONFIGURATION)
    model = omegaconf.OmegaConf.load(code / "configs" / "model" / f"{_MODEL}.yaml")
    omegaconf.OmegaConf.update(model, f"{_MODEL}.num_layers", sum(job["stage_layers"]))
    of_actor = {
        **published.megatron_training,
        **published.actor_config,
        "tensor_model_parallel_size": sizes["tensor"],
        "pipeline_model_parallel_size": sizes["pipeline"],
        "context_parallel_size": sizes["context"],
        "expert_model_parallel_size": sizes["expert"],
        "sequence_parallel": sizes["tensor"] > 1,
    }
    return configs.MegatronConfig(of_actor, model)
