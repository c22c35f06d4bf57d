"""Who has a key: the composed configuration, a section's class, a library, or the code around."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.trainer_code.config_location import ConfigLocation
from npu_rl.recipes.trainer_keys.key_resolver import KeyResolver
from tests.code_trees import LIBRARIES, MODULE, VERL, WITH_MINDSPEED, lay

A, R = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
T, V = f"{A}.megatron.override_transformer_config", f"{R}.engine_kwargs.vllm"
NESTED = """
from dataclasses import dataclass
@dataclass
class PassConfig:
    fuse: bool = False
@dataclass
class CompilationConfig:
    mode: int = 0
    pass_config: PassConfig | None = None
"""
ENGINE = LIBRARIES["vllm/engine/arg_utils.py"] + (
    "    compilation_config: CompilationConfig | None = None\n\n@dataclass\n"
    "class AsyncEngineArgs(EngineArgs):\n    enable_log_requests: bool = False\n"
)
HELPER = """
class AscendConfig:
    def __init__(self, vllm_config):
        config = vllm_config.additional_config
        self.mla = self._get_config_value(config, "enable_mlapo", False)
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    more = {
        "vllm/engine/arg_utils.py": ENGINE.replace(
            "import CacheDType", "import CacheDType, CompilationConfig"
        ),
        "vllm/config.py": LIBRARIES["vllm/config.py"] + NESTED,
        "vllm_ascend/other.py": HELPER,
        "verl/trainer/main_ppo.py": MODULE
        + "\ndef reads(config):\n    config.data.gen_batch_size\n    config.n_x\n",
    }
    return lay(tmp_path / "code", VERL, LIBRARIES, WITH_MINDSPEED, more)


def resolver(code: Path, config: str = "ppo_megatron_trainer") -> KeyResolver:
    return KeyResolver(code, ConfigLocation("verl.trainer.main_ppo", config))


KNOWN = [
    "data.train_batch_size",
    "hydra.job.name",
    f"{T}.num_layers",
    f"{T}.q_lora_rank",
    f"{T}.tensor_model_parallel_size",
    f"{T}.swap_optimizer_times",
    f"{T}.other_name",
    f"{T}.seq_length",
    f"{A}.megatron.override_ddp_config.overlap_grad_reduce",
    f"{V}.enable_expert_parallel",
    f"{V}.enable_log_requests",
    f"{V}.compilation_config.pass_config.fuse",
    f"{V}.additional_config.enable_mlapo",
    f"{V}.additional_config.torchair_graph_config.enabled",
    "algorithm.lam",
    "algorithm.filter_groups.enable",
    "data.gen_batch_size",
    "data.seed",
    "custom_reward_function.reward_kwargs.digit",
]


@pytest.mark.parametrize("key", KNOWN)
def test_keys_that_are_read(code: Path, key: str) -> None:
    found = resolver(code)
    assert found.resolve(key).known and found.unchecked == {}


UNKNOWN = {
    "data.train_batch_sise": "data.train_batch_size",
    f"{R}.tensor_parallel_size": f"{R}.tensor_model_parallel_size",
    f"{A}.temperature": f"{R}.temperature",
    f"{A}.optim.weight_decays": f"{A}.optim.weight_decay",
    "algorithm.filter_group": "algorithm.filter_groups",
    "trainer.zzz": "",
    f"{T}.num_layer": f"{T}.num_layers",
    f"{T}.enable_expert_parallel": "",
    f"{T}.only_a_programs": f"{T}.only_a_program",
    f"{A}.megatron.override_ddp_config.num_layers": "",
    f"{V}.enable_expert_paralel": f"{V}.enable_expert_parallel",
    f"{V}.num_layers": "",
    f"{V}.compilation_config.pass_config.fuze": f"{V}.compilation_config.pass_config.fuse",
    f"{V}.additional_config.enable_mlap": f"{V}.additional_config.enable_mlapo",
    f"{V}.additional_config.swap_space": "",
}


@pytest.mark.parametrize(("key", "right"), UNKNOWN.items())
def test_keys_that_nothing_reads(code: Path, key: str, right: str) -> None:
    found = resolver(code).resolve(key)
    assert not found.known and found.message
    assert found.right == right


def test_what_the_code_lacks_is_not_checked(code: Path, tmp_path: Path) -> None:
    alone = resolver(lay(tmp_path / "alone", VERL), "ppo_trainer")
    for key in (f"{V}.nothing", f"{T}.x", "actor_rollout_ref.model.override_config.rope_scaling"):
        assert alone.resolve(key).known
    assert set(alone.unchecked) == {V, T, "actor_rollout_ref.model.override_config"}


def test_a_value_is_no_section(code: Path) -> None:
    found = resolver(code).resolve("data.train_batch_size.x")
    assert not found.known and "is a value, not a section" in found.message
    assert resolver(code).resolve("data").section
