"""Small code folders for the checks: a trainer with Hydra's files, and the libraries it hands keys on to."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from npu_rl.common.yaml_documents.finding import Finding, Severity
from npu_rl.recipes.judgement.key_check import RecipeWithOrigins, check_keys, read_trainer
from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.recipes.recipe.trainer_settings import settings_of
from npu_rl.recipes.sizing.batch_arithmetic import TrainerValues, broken_rules
from npu_rl.recipes.trainer_code.citations import CitedCode
from npu_rl.recipes.trainer_code.compose_config import compose_config
from npu_rl.recipes.trainer_code.config_location import ConfigLocation
from npu_rl.recipes.trainer_keys.key_resolver import KeyResolver

MODULE = """
import hydra

@hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)
def main(config):
    data_config = config.data
    seed = data_config.get("seed", 1)
    arguments = config.custom_reward_function.get("reward_kwargs", {})

if __name__ == "__main__":
    main()
"""
ACTOR = """
    ppo_mini_batch_size: 256
    ppo_micro_batch_size: null
    ppo_micro_batch_size_per_gpu: null
    use_dynamic_bsz: false
    use_kl_loss: false
    kl_loss_coef: 0.001
    optim: {lr: 1e-6, weight_decay: 0.01}
"""
TRAINER = (
    """
data: {train_files: a.parquet, val_files: b.parquet, train_batch_size: 1024, max_prompt_length: 512}
actor_rollout_ref:
  model: {path: m, override_config: {}, use_remove_padding: false}
  actor:
    strategy: fsdp"""
    + ACTOR
    + """
    ulysses_sequence_parallel_size: 1
  ref: {log_prob_micro_batch_size: null, log_prob_micro_batch_size_per_gpu: null}
  rollout:
    name: vllm
    n: 1
    temperature: 1.0
    tensor_model_parallel_size: 2
    response_length: ${data.max_prompt_length}
    log_prob_micro_batch_size: null
    log_prob_micro_batch_size_per_gpu: null
    engine_kwargs: {vllm: {swap_space: null}}
    val_kwargs: {n: 1}
algorithm:
  _target_: verl.trainer.config.AlgoConfig
  adv_estimator: gae
  use_kl_in_reward: false
custom_reward_function: {path: null, name: compute_score}
reward_model: {reward_manager: naive}
trainer: {nnodes: 1, n_gpus_per_node: 8, logger: [console], project_name: p, total_training_steps: null,
          save_freq: -1, test_freq: -1, val_before_train: true, device: cuda, experiment_name: e,
          profile_steps: null}
"""
)
_REFERENCE = """
  ref:
    megatron: {tensor_model_parallel_size: 1, pipeline_model_parallel_size: 1, context_parallel_size: 1,
               expert_model_parallel_size: 1, expert_tensor_parallel_size: null}
    log_prob_micro_batch_size: null
    log_prob_micro_batch_size_per_gpu: null
"""
_MEGATRON = """
    megatron: {tensor_model_parallel_size: 1, pipeline_model_parallel_size: 1, context_parallel_size: 1,
               expert_model_parallel_size: 1, expert_tensor_parallel_size: null, seed: 42,
               override_transformer_config: {recompute_method: null}, override_ddp_config: {}}
"""
_FSDP_REFERENCE = "\n  ref: {log_prob_micro_batch_size: null, log_prob_micro_batch_size_per_gpu: null}\n"
MEGATRON = (
    TRAINER.replace("strategy: fsdp", "strategy: megatron")
    .replace("    ulysses_sequence_parallel_size: 1\n", _MEGATRON)
    .replace("override_config: {}", "override_config: {model_config: {}}")
    .replace(_FSDP_REFERENCE, _REFERENCE)
)
ALGORITHM = """
from dataclasses import dataclass, field
from typing import Optional
from verl.base_config import BaseConfig

@dataclass
class FilterConfig(BaseConfig):
    enable: bool = False

@dataclass
class AlgoConfig(BaseConfig):
    adv_estimator: str = "gae"
    use_kl_in_reward: bool = False
    lam: float = 1.0
    filter_groups: Optional[FilterConfig] = None
"""
CORE = """
from dataclasses import dataclass
from typing import Literal, Optional
from ..parallel import ModelParallelConfig

@dataclass
class TransformerConfig(ModelParallelConfig):
    num_layers: int = 0
    recompute_method: Optional[Literal["uniform", "block"]] = None
    multi_latent_attention: bool = False
    moe_grouped_gemm: bool = False

@dataclass
class MLATransformerConfig(TransformerConfig):
    q_lora_rank: int = 512
"""
MINDSPEED = """
def _add(parser):
    group = parser.add_argument_group(title="a")
    group.add_argument("--multi-head-latent-attention", action="store_true")
    group.add_argument("--swap-optimizer-times", type=int, default=16)
    group.add_argument("--context-algo", type=str, default="a", choices=["a", "b"])

def use(args):
    return args.seq_length if args.multi_head_latent_attention else 0
"""
FEATURE = """
class Feature:
    def register_args(self, parser):
        self.add_parser_argument_choices_value(parser, "--context-algo", "c")
        parser.add_argument("-x", "--renamed", dest="other_name")
"""
ENGINE = """
from dataclasses import dataclass
from typing import Any, Literal, Optional
from vllm.config import CacheDType

@dataclass
class EngineArgs:
    model: str = ""
    dtype: str = "auto"
    kv_cache_dtype: CacheDType = "auto"
    swap_space: float = 4
    enable_expert_parallel: bool = False
    quantization: Optional[Literal["fp8"]] = None
    additional_config: Optional[dict[str, Any]] = None
"""
ASCEND = """
class AscendConfig:
    def __init__(self, vllm_config):
        additional_config = vllm_config.additional_config or {}
        self.graph = Graph(additional_config.get("torchair_graph_config", {}))
        self.scheduler = Scheduler(additional_config.get("ascend_scheduler_config", {}))
        self.map = additional_config.get("expert_map_path", None)

class Graph:
    def __init__(self, torchair_graph_config):
        self.enabled = torchair_graph_config.get("enabled", False)

class Scheduler:
    def __init__(self, ascend_scheduler_config):
        self.enabled = ascend_scheduler_config.get("enabled", False)
        for k, v in ascend_scheduler_config.items():
            setattr(self, k, v)
"""
RULES = """
class RayPPOTrainer:
    def _validate_config(self):
        assert real_train_batch_size % minimal_bsz == 0
        minimal_bsz = megatron_dp * config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu
        "must be divisible by model_parallel_size"
        "Please set at least one of"
        "You have set both"
        assert config.data.train_batch_size >= config.actor_rollout_ref.actor.ppo_mini_batch_size
        "must enable `use_remove_padding`"
"""
ALGORITHMS = """
from enum import Enum

class AdvantageEstimator(str, Enum):
    GAE = "gae"
    GRPO = "grpo"

def advantages(config):
    if config.algorithm.adv_estimator == AdvantageEstimator.GAE:
        return 1
    if config.algorithm.adv_estimator != AdvantageEstimator.GRPO:
        raise NotImplementedError
    return 2
"""
WORKERS = """
def build(self):
    "is not divisible by infer_tp"
    "should be divisible by"
"""
VERL: dict[str, str] = {
    "verl/trainer/main_ppo.py": MODULE,
    "verl/trainer/config/ppo_trainer.yaml": TRAINER,
    "verl/trainer/config/ppo_megatron_trainer.yaml": MEGATRON,
    "verl/trainer/config/__init__.py": "from .algorithm import AlgoConfig\n",
    "verl/trainer/config/algorithm.py": ALGORITHM,
    "verl/base_config.py": "class BaseConfig:\n    extra: dict = None\n",
    "verl/trainer/ppo/core_algos.py": ALGORITHMS,
    "verl/trainer/ppo/ray_trainer.py": RULES,
    "verl/workers/fsdp_workers.py": WORKERS,
    "verl/workers/megatron_workers.py": WORKERS,
    "verl/workers/rollout/vllm_rollout/vllm_rollout_spmd.py": "LLM(dtype=config.dtype, **engine_kwargs)\n",
    "verl/models/mcore/config_converter.py": '"the following keys will be removed"\n',
}
# A trainer whose configuration lies beside it, on top of verl's (recipe/dapo of verl 796871d7).
DAPO: dict[str, str] = {
    "recipe/dapo/main_dapo.py": MODULE.replace("ppo_trainer", "dapo_trainer"),
    "recipe/dapo/config/dapo_trainer.yaml": (
        "hydra:\n  searchpath:\n    - file://verl/trainer/config\n\ndefaults:\n  - ppo_trainer\n  - _self_\n\n"
        "data:\n  gen_batch_size: ${data.train_batch_size}\n"
    ),
}
LIBRARIES: dict[str, str] = {
    "megatron/core/parallel.py": "class ModelParallelConfig:\n    tensor_model_parallel_size: int = 1\n",
    "megatron/core/transformer/transformer_config.py": CORE,
    "megatron/core/distributed/distributed_data_parallel_config.py": (
        "class DistributedDataParallelConfig:\n    overlap_grad_reduce: bool = False\n"
    ),
    "megatron/core/parallel_state.py": '"is not divisible by expert_tensor_model_pipeline_parallel size"\n',
    "vllm/engine/arg_utils.py": ENGINE,
    "vllm/config.py": 'from typing import Literal\nCacheDType = Literal["auto", "fp8"]\n',
    "vllm_ascend/ascend_config.py": ASCEND,
}
WITH_MINDSPEED: dict[str, str] = {
    "mindspeed/__init__.py": "",
    "mindspeed/arguments.py": MINDSPEED,
    "mindspeed/features_manager/feature.py": FEATURE,
    "mindspeed/run/run.py": 'parser.add_argument("--only-a-program")\n',
}

MINIMAL: dict[str, Any] = {
    "schema": 1,
    "name": "r",
    "title": "t",
    "manifest": "quickstart",
    "device": "cpu",
    "steps": 1,
    "model": {"path": "/m"},
    "data": {"train": ["a.parquet"], "test": ["b.parquet"], "batch": 8},
    "rollout": {"engine": "hf", "responses": 8, "tensor_parallel": 1, "log_prob_micro_batch": 16},
    "actor": {"strategy": "fsdp", "mini_batch": 8, "micro_batch": 16},
    "optimizer": {"lr": "1e-6"},
    "cluster": {"dies": 1},
}


def lay(folder: Path, *parts: Mapping[str, str]) -> Path:
    """A code folder with these files; later ones replace earlier ones."""
    for part in parts:
        for name, text in part.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text), encoding="utf-8")
    return folder


@dataclass(frozen=True)
class Loaded:
    """A recipe as if it were read from a file with one key per line, each named by its dotted path."""

    recipe: Recipe

    def where(self, *path: str | int) -> str:
        return "r.yaml:" + (".".join(str(part) for part in path) or "1")


def recipe(**changes: Any) -> Loaded:
    """The smallest recipe with changes; a section's keys are added to those it has."""
    data = dict(MINIMAL)
    for name, value in changes.items():
        old = data.get(name)
        data[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    return Loaded(Recipe.model_validate(data))


def megatron(**changes: Any) -> Loaded:
    """The same for Megatron."""
    changes["actor"] = {"strategy": "megatron", **changes.get("actor", {})}
    return recipe(**changes)


def archive(repo: Path, commit: str, package: str, folder: Path) -> Path:
    """One package of a commit of a real upstream."""
    command = ["git", "-C", str(repo), "archive", commit, package]
    with tarfile.open(
        fileobj=BytesIO(subprocess.run(command, capture_output=True, check=True).stdout)
    ) as tar:
        tar.extractall(folder, filter="data") if hasattr(tarfile, "data_filter") else tar.extractall(folder)
    return folder


R1_ZERO_PINS = (
    ("volcengine+verl", "55e3c5bc09c85dba09f736eef476f110ad641b75", "verl"),
    ("ROCm+vllm", "b6553be1bc75f046b00046a4ad7576364d03c835", "vllm"),
    ("vllm-project+vllm-ascend", "b9f715d6ce30ee4511402bc81f1b46219bec2b85", "vllm_ascend"),
    ("NVIDIA+Megatron-LM", "a845aa7e12b3a117e24c2352b9e3e60bad2e3a17", "megatron/core"),
    ("Ascend+MindSpeed", "7ff818c4c77ddb290f61261a6f12d7cfa1bf62e2", "mindspeed"),
)
CANN_PINS = (
    ("volcengine+verl", "54c9b7364c2d188b2ba4107404cfa3c2b446df19", "verl"),
    ("ROCm+vllm", "b6553be1bc75f046b00046a4ad7576364d03c835", "vllm"),
    ("vllm-project+vllm-ascend", "f20869ef9d256434bba1260cd1bbfca9edf82cbd", "vllm_ascend"),
    ("NVIDIA+Megatron-LM", "core_r0.8.0", "megatron"),
    ("Ascend+MindSpeed", "v2.0.0_core_r0.8.0", "mindspeed"),
)
CANN_RECIPES = "bcd3be7a96fa17a5d9ca243baf37d13590714633"


def unpatched(upstreams: Path, pins: Iterable[tuple[str, str, str]], folder: Path) -> Path:
    """The packages of real upstreams at their pins, without a patch."""
    for project, commit, package in pins:
        archive(upstreams / project / "repo", commit, package, folder)
    return folder


def unpatched_cann(upstreams: Path, folder: Path) -> Path:
    """The code of cann-recipes-train: upstream's, and the patches that it makes to verl at run time."""
    own = ("hicann+cann-recipes-train", CANN_RECIPES, "deepseek")
    unpatched(upstreams, [*CANN_PINS, own], folder)
    shutil.move(folder / "deepseek/verl_patches", folder / "verl_patches")
    for name in ("main_ppo_npu.py", "config/ppo_mindspeed_trainer.yaml"):
        shutil.copy(folder / "verl_patches/trainer" / name, folder / "verl/trainer" / name)
    return folder


@dataclass
class Checked:
    """What is found of keys and values, by severity, and the trainer's own arithmetic that does not hold."""

    errors: list[Finding]
    notes: list[Finding]
    sizes: list[Finding]


def check_recipe(loaded: RecipeWithOrigins, code: Path | None) -> Checked:
    """A recipe against a code folder."""
    trainer = read_trainer(loaded.recipe, code)
    found = check_keys(loaded, trainer, code)
    errors = [one for one in found if one.severity is Severity.ERROR]
    given = settings_of(loaded.recipe)
    tree = trainer.tree if isinstance(trainer, KeyResolver) else None
    values = TrainerValues({key: setting.value for key, setting in given.items()}, tree)
    sizes = []
    for broken in broken_rules(values, loaded.recipe.megatron, CitedCode(code)):
        setting = next((given[key] for key in broken.keys if key in given), None)
        path = setting.path if setting else ()
        where = loaded.where(*path)
        sizes.append(Finding(broken.rule, Severity.ERROR, path, broken.keys[0], broken.message, "", where))
    return Checked(errors, [one for one in found if one not in errors], sizes)


def known_keys(code: Path, config: str, module: str = "verl.trainer.main_ppo") -> set[str]:
    """The keys of a configuration's files."""
    return set(compose_config(code, ConfigLocation(module, config)).entries)
