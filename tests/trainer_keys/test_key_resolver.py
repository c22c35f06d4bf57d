"""Who knows a key, in a small code folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.trainer_code.config_location import ConfigLocation
from npu_rl.recipes.trainer_code.config_tree import ConfigFault
from npu_rl.recipes.trainer_code.source_index import SourceIndex
from npu_rl.recipes.trainer_code.value_types import ExpectedType
from npu_rl.recipes.trainer_keys.code_usages import CodeUsages
from npu_rl.recipes.trainer_keys.key_resolver import KeyResolver
from npu_rl.recipes.trainer_keys.resolution import KeyResolution
from tests.code_trees import LIBRARIES, VERL, WITH_MINDSPEED, lay
from tests.support import present

MODULE = "verl.trainer.main_ppo"
A, R = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
T = f"{A}.megatron.override_transformer_config"
E = f"{R}.engine_kwargs.vllm"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    return lay(tmp_path / "code", VERL, LIBRARIES)


def fsdp(code: Path, key: str) -> KeyResolution:
    return KeyResolver(code, ConfigLocation(MODULE, "ppo_trainer")).resolve(key)


def megatron(code: Path, key: str, *given: str) -> KeyResolution:
    location = ConfigLocation(MODULE, "ppo_megatron_trainer")
    return KeyResolver(code, location, dict.fromkeys([key, *given])).resolve(key)


@pytest.mark.parametrize("key", [f"{A}.optim.lr", "trainer.nnodes", f"{E}.swap_space", "hydra.run.dir"])
def test_a_key_of_the_files_is_known_silently(code: Path, key: str) -> None:
    resolution = fsdp(code, key)
    assert resolution.known and not resolution.message and not resolution.unchecked


@pytest.mark.parametrize(
    ("key", "right"),
    [
        (f"{A}.optim.lrr", f"{A}.optim.lr"),
        (f"{A}.optim.weight-decay", f"{A}.optim.weight_decay"),
        ("trainer.nodes", "trainer.nnodes"),
        ("trainer.freq_save", "trainer.save_freq"),
        (f"{A}.temperature", f"{R}.temperature"),
        (f"{A}.lr", f"{A}.optim.lr"),
        (f"{A}.val_kwargs.n", f"{R}.val_kwargs.n"),
        ("algorithm.lamm", "algorithm.lam"),
        ("algorithm.filter_groups.enabled", "algorithm.filter_groups.enable"),
        ("customreward_function.path", "custom_reward_function.path"),
    ],
)
def test_an_unknown_key_has_a_nearest_right_name(code: Path, key: str, right: str) -> None:
    assert fsdp(code, key) == KeyResolution(False, f"unknown key {key}", right=right)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("trainer.zzz", "unknown key trainer.zzz: neither the configuration files nor the code read it"),
        ("trainer.device.x", "trainer.device is a value, not a section (verl/trainer/config/ppo_trainer."),
        ("actor@actor_rollout_ref.actor", "a configuration group is chosen by"),
    ],
)
def test_what_is_said_of_others(code: Path, key: str, message: str) -> None:
    resolution = fsdp(code, key)
    assert not resolution.known and message in resolution.message


def test_a_field_of_the_sections_class_is_known(code: Path) -> None:
    assert fsdp(code, "algorithm.lam").where == "verl/trainer/config/algorithm.py:14"
    assert fsdp(code, "algorithm.filter_groups.enable").known
    assert str(fsdp(code, "algorithm.filter_groups.enable").expected) == "true or false"


def test_a_key_that_only_the_code_reads(code: Path) -> None:
    resolution = fsdp(code, "data.seed")
    assert (resolution.message, resolution.where) == ("", "verl/trainer/main_ppo.py:7")
    resolution = fsdp(code, "custom_reward_function.reward_kwargs.digit")
    assert (resolution.message, resolution.where) == ("", "verl/trainer/main_ppo.py:8")
    lay(code, {"verl/workers/rollout/hf.py": 'self.config.get("micro")\n'})
    assert fsdp(code, f"{R}.micro").message == "known only to verl/workers/rollout/hf.py:1"


def test_a_field_the_class_lacks_fails_where_the_trainer_builds_it(code: Path) -> None:
    lay(code, {"verl/a.py": 'algorithm_config.get("more")\n'})
    assert fsdp(code, "algorithm.more").known
    assert "but verl.trainer.config.AlgoConfig has no such field" in fsdp(code, "algorithm.more").message
    lay(code, {"verl/b.py": "\nomega_conf_to_dataclass(self.config.algorithm)\n"})
    resolution = fsdp(code, "algorithm.more")
    assert not resolution.known and resolution.message.endswith("is built from it at verl/b.py:2")


def test_an_empty_section_takes_any_key_unchecked(code: Path) -> None:
    resolution = fsdp(code, "actor_rollout_ref.model.override_config.num_hidden_layers")
    assert resolution.known and resolution.unchecked == "transformers"


def test_megatron_reads_the_models_keys_one_level_down(code: Path) -> None:
    section = "actor_rollout_ref.model.override_config"
    assert megatron(code, f"{section}.x").right == f"{section}.model_config.x"
    assert megatron(code, f"{section}.model_config.x").unchecked == "transformers"


def test_megatron_cores_own_keys(code: Path) -> None:
    assert megatron(code, f"{T}.tensor_model_parallel_size").known, "of the base class, in another file"
    assert megatron(code, f"{T}.q_lora_rank").where == "megatron/core/transformer/transformer_config.py:15"
    wrong = megatron(code, f"{T}.num_layrs")
    assert (wrong.message, wrong.right) == ("Megatron-core has no num_layrs", f"{T}.num_layers")
    assert megatron(code, f"{T}.multi_latent_attention").message == ""
    section = f"{A}.megatron.override_ddp_config"
    assert megatron(code, f"{section}.overlap_grad_reduce").known
    wrong = megatron(code, f"{section}.overlap_grad_reduced")
    assert wrong.message.endswith("has no field overlap_grad_reduced")
    assert wrong.right == f"{section}.overlap_grad_reduce"


def test_mindspeed_gets_its_own_keys_from_verl(code: Path) -> None:
    lay(code, WITH_MINDSPEED)
    assert "drops it with a warning" in megatron(code, f"{T}.swap_optimizer_times").message
    hand = 'repatch(self.config.actor.megatron.get("override_transformer_config", {}))\n'
    lay(code, {"verl/workers/megatron_workers.py": hand})
    assert megatron(code, f"{T}.swap_optimizer_times") == KeyResolution(
        True, expected=ExpectedType(frozenset({"number"})), where="mindspeed/arguments.py:5"
    )


@pytest.mark.parametrize("repatched", [True, False])
def test_mindspeed_keeps_its_keys_from_megatron_core_where_a_bridge_configures_it(
    code: Path, repatched: bool
) -> None:
    """verl's converter, which drops unknown keys with a warning, is still there from 0.8 on, and no actor calls it."""
    repatch = 'repatch_config = dict(engine_config.get("override_transformer_config", {}))\nrepatch(repatch_config)\n'
    engines = {
        "verl/workers/engine/megatron/transformer_impl.py": "assert self.engine_config.use_mbridge\n",
        "verl/workers/engine/mindspeed/transformer_impl.py": repatch if repatched else "",
    }
    lay(code, WITH_MINDSPEED, engines)
    message = megatron(code, f"{T}.swap_optimizer_times").message
    assert ("Megatron-core doesn't" in message) is not repatched
    assert "config_converter" not in message
    assert megatron(code, f"{T}.multi_latent_attention").message == "", "one spelling is enough there"


def test_mindspeeds_keys(code: Path) -> None:
    lay(code, WITH_MINDSPEED)
    for name in ("swap_optimizer_times", "seq_length", "other_name", "context_algo"):
        resolution = megatron(code, f"{T}.{name}")
        assert resolution.known and f"only MindSpeed reads {name} (mindspeed/" in resolution.message
        assert "drops it with a warning" in resolution.message
    assert megatron(code, f"{T}.moe_grouped_gemm").message == ""
    for name in ("only_a_program", "renamed", "nobodys"):
        unknown = f"neither Megatron-core nor MindSpeed knows {name}"
        assert megatron(code, f"{T}.{name}").message.startswith(unknown)
    assert megatron(code, f"{T}.context_algo").expected.choices == ("a", "b", "c")


def test_both_spellings_of_latent_attention_are_wanted(code: Path) -> None:
    lay(code, WITH_MINDSPEED)
    one, other = f"{T}.multi_latent_attention", f"{T}.multi_head_latent_attention"
    reads = "MindSpeed (mindspeed/arguments.py:4) reads multi_head_latent_attention"
    assert reads in megatron(code, one).message
    assert "Megatron-core (megatron/core/transformer/" in megatron(code, other).message
    assert megatron(code, one, other).message == ""
    assert "set both" not in megatron(code, other, one).message


def test_a_similar_key_of_the_other_reader_is_told(code: Path) -> None:
    parser = 'def register_args(parser):\n    parser.add_argument("--moe-grouped-fast-gemm")\n'
    lay(code, WITH_MINDSPEED, {"mindspeed/features_manager/moe.py": parser})
    message = megatron(code, f"{T}.moe_grouped_fast_gemm").message
    assert "reads moe_grouped_gemm; set both if both are meant" in message


def test_without_the_libraries_their_keys_are_not_checked(tmp_path: Path) -> None:
    code = lay(tmp_path, VERL)
    assert "the code has no megatron/core" in megatron(code, f"{T}.anything").unchecked
    assert "the code has no vllm" in fsdp(code, f"{E}.anything").unchecked
    assert "the code has no vllm_ascend" in fsdp(code, f"{E}.additional_config.anything").unchecked


def test_the_engines_arguments(code: Path) -> None:
    assert fsdp(code, f"{E}.enable_expert_parallel").known
    wrong = fsdp(code, f"{E}.enable_expert_paralel")
    assert wrong.message == "vLLM's engine has no argument enable_expert_paralel"
    assert wrong.right == f"{E}.enable_expert_parallel"
    assert fsdp(code, f"{E}.kv_cache_dtype").expected.choices == ("auto", "fp8")
    assert fsdp(code, f"{E}.quantization").expected.choices == (), "platform plugins add some"


def test_an_argument_the_trainer_passes_itself_cannot_be_given_twice(code: Path) -> None:
    resolution = fsdp(code, f"{E}.dtype")
    assert not resolution.known and "the trainer passes dtype to vLLM itself" in resolution.message
    assert resolution.right == f"{R}.dtype"


@pytest.mark.parametrize(
    ("key", "right"),
    [
        ("expert_map_path", None),
        ("torchair_graph_config", None),
        ("torchair_graph_config.enabled", None),
        ("ascend_scheduler_config.anything", None),
        ("torchair_graph_config.enable", "torchair_graph_config.enabled"),
        ("torchair_graph.enabled", "torchair_graph_config"),
        ("expert_map", "expert_map_path"),
    ],
)
def test_the_ascend_plugins_options(code: Path, key: str, right: str | None) -> None:
    resolution = fsdp(code, f"{E}.additional_config.{key}")
    assert resolution.known == (right is None)
    assert resolution.right == (f"{E}.additional_config.{right}" if right else "")


def test_a_configuration_that_is_not_there(code: Path) -> None:
    with pytest.raises(ConfigFault, match="missing configuration nope"):
        KeyResolver(code, ConfigLocation(MODULE, "nope"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('config.data.get("x")', True),
        ('data_config["x"]', True),
        ("self.config.data.x", True),
        ('getattr(config.data, "x", 1)', True),
        ('OmegaConf.select(config, "data.x")', True),
        ('"x" in config.data', True),
        ('d = config.get("data")\nd.get("x")', True),
        ('config.get("x")', True),
        ("config.actor.x", False),
        ('actor_config.get("x")', False),
        ('a = config.actor\na.get("x")', False),
        ("data.x", False),
        ("self.x", False),
        ('hf_config.get("x")', False),
        ("config.data.x = 1", False),
        ('if __name__ == "__main__":\n    config.data.x', False),
    ],
)
def test_what_counts_as_a_read_of_data_x(tmp_path: Path, text: str, found: bool) -> None:
    lay(tmp_path, {"pkg/a.py": text})
    read = CodeUsages(SourceIndex(tmp_path), "pkg.main").find("data", "x", ["data", "actor"], [])
    assert (read is not None) == found


def test_a_file_in_a_sections_folder_reads_that_section(tmp_path: Path) -> None:
    lay(tmp_path, {"pkg/workers/rollout/hf.py": 'self.config.get("micro")\n'})
    reads = CodeUsages(SourceIndex(tmp_path), "pkg.main")
    sections = ["x.rollout", "x.actor", "x.critic"]
    assert reads.find("x.rollout", "micro", sections, ["x.critic"]) is not None
    assert reads.find("x.actor", "micro", sections, []) is None
    assert reads.find("x.actor", "micro", sections, ["x.critic"]) is None


def test_a_trainer_of_another_package_reads_keys_in_the_packages_that_it_imports(tmp_path: Path) -> None:
    """recipe.dapo.main_dapo trains with the workers of verl, whose rollout may have keys of its own."""
    files = {
        "recipe/dapo/main_dapo.py": "import hydra\nfrom verl.trainer.ppo.reward import load_reward_manager\n",
        "recipe/other/trainer.py": "config.rollout.get('of_another_recipe')\n",
        "verl/workers/rollout/own.py": "def __init__(self, config):\n    size = config.get('dp_size', 1)\n",
        "vllm/engine.py": "config.rollout.get('of_the_engine')\n",
    }
    usages = CodeUsages(SourceIndex(lay(tmp_path, files)), "recipe.dapo.main_dapo")
    assert present(usages.find(R, "dp_size", [R, A], [])).where == "verl/workers/rollout/own.py:2"
    assert usages.find(R, "of_the_engine", [R, A], []) is None
