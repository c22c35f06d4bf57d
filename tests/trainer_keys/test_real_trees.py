"""The checks against the code they are for: the quickstart's tree, and the pins of the other manifests."""

from __future__ import annotations

import dataclasses
import importlib
import time
from pathlib import Path

import pytest

from npu_rl.recipes.judgement.judge import AssembledTree, judge
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.recipes.recipe.trainer_command import argument
from npu_rl.recipes.recipe.trainer_settings import flatten_mappings, list_settings
from npu_rl.recipes.trainer_code.config_location import ConfigLocation
from npu_rl.recipes.trainer_code.hydra_config import compose_files
from npu_rl.recipes.trainer_code.source_index import SourceIndex
from npu_rl.recipes.trainer_keys.key_resolver import KeyResolver
from npu_rl.recipes.trainer_keys.mindspeed_arguments import MindSpeedArguments
from tests.code_trees import R1_ZERO_PINS, archive, check_recipe, known_keys, unpatched
from tests.training.test_hydra_compose import composed

MODULE = "verl.trainer.main_ppo"
VERL_54C9B = "54c9b7364c2d188b2ba4107404cfa3c2b446df19"
MINDSPEED_7FF81 = "7ff818c4c77ddb290f61261a6f12d7cfa1bf62e2"
MINDSPEED_DC83A = "dc83a031a2653341be1690013c11cfbf556155c5"
T = "actor_rollout_ref.actor.megatron.override_transformer_config"
GRAPHS = "actor_rollout_ref.rollout.engine_kwargs.vllm.additional_config.torchair_graph_config"
A, R = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
# What the published DeepSeek-V3 recipe for MindSpeed 7ff818c sets there (verl 448c6c3, recipe/r1_ascend).
PUBLISHED = (
    "multi_head_latent_attention",
    "use_flash_attn",
    "use_fused_rotary_pos_emb",
    "use_fused_swiglu",
    "swap_optimizer",
    "seq_length",
    "pipeline_num_transformer_layers",
    "rope_scaling_type",
    "yarn_scaling_factor",
    "rope_scaling_mscale",
    "rope_scaling_mscale_all_dim",
    "moe_grouped_gemm",
    "num_layers_in_first_pipeline_stage",
    "moe_token_dispatcher_type",
    "recompute_granularity",
)


def test_the_quickstart_is_right_and_quickly_checked(code_tree: Path) -> None:
    loaded = load_recipe("quickstart")
    started = time.process_time()
    found = check_recipe(loaded, code_tree)
    assert time.process_time() - started < 2, "0.1 s on a quiet machine"
    assert found.errors == found.notes == []


def test_mistakes_in_the_quickstart(code_tree: Path) -> None:
    arguments = ["cluster.dies=3", "actor.parallel.tensor=2", "overrides.trainer.test_frequency=1"]
    judgement = judge(load_recipe("quickstart", arguments), AssembledTree(code_tree, "quickstart"))
    found = judgement.errors
    assert {error.where for error in found} >= {f"command line: {argument}" for argument in arguments[1:]}
    assert any(error.fix.startswith("write logging.validate_every in place of") for error in found)
    divides = "not divisible by 3 dies (verl/trainer/ppo/ray_trainer.py:"
    assert any(divides in error.message for error in found)


def test_every_key_of_verl_is_known_to_some_reader(code_tree: Path) -> None:
    """The other way round: nothing that the configuration files have is refused."""
    for config in ("ppo_trainer", "ppo_megatron_trainer"):
        resolver = KeyResolver(code_tree, ConfigLocation(MODULE, config))
        for key in known_keys(code_tree, config):
            resolution = resolver.resolve(key)
            value = resolver.tree.entries[key].value
            assert resolution.known, key
            assert resolution.section or resolution.expected.mismatch(value) is None, key


@pytest.mark.second
@pytest.mark.parametrize(
    ("key", "right"),
    [
        (f"{R}.engine_kwargs.vllm.gpu_memory_utilization", f"{R}.gpu_memory_utilization"),
        (f"{R}.engine_kwargs.vllm.enable_expert_paralel", f"{R}.engine_kwargs.vllm.enable_expert_parallel"),
        (f"{R}.engine_kwargs.vllm.seed", f"{R}.seed"),
        (f"{GRAPHS}.enable", f"{GRAPHS}.enabled"),
        ("algorithm.filter_groups.enabled", "algorithm.filter_groups.enable"),
        (f"{A}.temperature", f"{R}.temperature"),
        ("data.zzz", ""),
        (f"{A}.optim.lr_warmup_step", f"{A}.optim.lr_warmup_steps"),
    ],
)
def test_keys_nobody_reads(code_tree: Path, key: str, right: str) -> None:
    resolution = KeyResolver(code_tree, ConfigLocation(MODULE, "ppo_trainer")).resolve(key)
    assert not resolution.known and resolution.right == right


@pytest.mark.parametrize(
    ("key", "file"),
    [
        (f"{R}.micro_batch_size", "verl/workers/rollout/hf_rollout.py"),
        (f"{R}.limit_images", "verl/workers/rollout/vllm_rollout/"),
        ("custom_reward_function.reward_kwargs.digit", "verl/trainer/ppo/reward.py"),
        ("data.gen_batch_size", "verl/trainer/ppo/ray_trainer.py"),
        (f"{A}.optim.betas", "verl/workers/"),
    ],
)
def test_keys_only_the_code_reads(code_tree: Path, key: str, file: str) -> None:
    resolution = KeyResolver(code_tree, ConfigLocation(MODULE, "ppo_trainer")).resolve(key)
    assert resolution.known and (resolution.where or "").startswith(file)


def test_megatron_core_alone(code_tree: Path) -> None:
    resolver = KeyResolver(code_tree, ConfigLocation(MODULE, "ppo_megatron_trainer"))
    assert resolver.resolve(f"{T}.multi_latent_attention").known
    assert resolver.resolve(f"{T}.multi_head_latent_attention").right == f"{T}.multi_latent_attention"
    assert "drops what TransformerConfig lacks" in resolver.resolve(f"{T}.q_lora_rank").message


@pytest.mark.rehearsal
def test_the_fields_are_those_python_finds(code_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Megatron-core's classes, imported for real."""
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(code_tree))
    sources = SourceIndex(code_tree)
    for module, name in (
        ("megatron.core.transformer.transformer_config", "MLATransformerConfig"),
        ("megatron.core.optimizer.optimizer_config", "OptimizerConfig"),
        ("megatron.core.distributed.distributed_data_parallel_config", "DistributedDataParallelConfig"),
    ):
        real = {field.name for field in dataclasses.fields(getattr(importlib.import_module(module), name))}
        assert set(sources.fields(f"{module}.{name}") or ()) == real


@pytest.mark.rehearsal
def test_the_quickstart_composes(code_tree: Path) -> None:
    pytest.importorskip("hydra")
    known = known_keys(code_tree, "ppo_trainer")
    given = list(flatten_mappings(list_settings(load_recipe("quickstart").recipe)))
    arguments = [argument(setting.key, setting.value, setting.key in known) for setting in given]
    found = composed(code_tree / "verl/trainer/config", *arguments)
    assert found.unresolved == {}
    assert found.config["custom_reward_function"]["reward_kwargs"] == {"digit": "7"}
    assert found.config["actor_rollout_ref"]["actor"]["optim"]["lr"] == 3e-3


@pytest.mark.upstreams
class TestUpstreams:
    """The pins of the manifests that come from git."""

    @pytest.fixture
    def newer(self, upstreams: Path, tmp_path: Path) -> Path:
        """verl 55e3c with Megatron-core 0.12.1 and MindSpeed 7ff81."""
        wanted = ("verl", "megatron/core", "mindspeed")
        return unpatched(upstreams, (pin for pin in R1_ZERO_PINS if pin[2] in wanted), tmp_path)

    def test_a_configuration_without_defaults(self, upstreams: Path, tmp_path: Path) -> None:
        code = archive(upstreams / "volcengine+verl/repo", VERL_54C9B, "verl", tmp_path)
        tree = compose_files(code / "verl/trainer/config", "ppo_megatron_trainer", code)
        assert len(tree.entries) == 282 and len(tree.files) == 1
        resolver = KeyResolver(code, ConfigLocation(MODULE, "ppo_megatron_trainer"))
        assert resolver.resolve(f"{A}.optim.warmup_style").known
        assert not resolver.resolve(f"{A}.optim.lr_decay_style").known, "a key of later versions"

    def test_the_published_recipes_keys_have_readers(self, newer: Path) -> None:
        given = {f"{T}.{name}": True for name in PUBLISHED}
        resolver = KeyResolver(newer, ConfigLocation(MODULE, "ppo_megatron_trainer"), given)
        resolutions = {name: resolver.resolve(f"{T}.{name}") for name in PUBLISHED}
        assert [name for name, resolution in resolutions.items() if not resolution.known] == []
        told = [name for name, resolution in resolutions.items() if resolution.message]
        assert told == ["multi_head_latent_attention"], "verl gives MindSpeed the rest"

    def test_latent_attention_has_two_spellings(self, newer: Path) -> None:
        given = {f"{T}.multi_head_latent_attention": True}
        resolver = KeyResolver(newer, ConfigLocation(MODULE, "ppo_megatron_trainer"), given)
        message = resolver.resolve(f"{T}.multi_head_latent_attention").message
        reads = "MindSpeed (mindspeed/core/fusions/fused_rope.py:121) read multi_latent_attention; set both"
        assert reads in message

    def test_a_key_the_rollouts_class_refuses(self, newer: Path) -> None:
        resolver = KeyResolver(newer, ConfigLocation(MODULE, "ppo_trainer"))
        resolution = resolver.resolve(f"{R}.micro_batch_size")
        assert not resolution.known
        assert "RolloutConfig has no such field and is built from it at" in resolution.message

    @pytest.mark.parametrize(("commit", "count"), [(MINDSPEED_7FF81, 168), (MINDSPEED_DC83A, 168)])
    def test_mindspeeds_arguments(self, upstreams: Path, tmp_path: Path, commit: str, count: int) -> None:
        code = archive(upstreams / "Ascend+MindSpeed/repo", commit, "mindspeed", tmp_path)
        arguments = MindSpeedArguments(SourceIndex(code))
        assert len(arguments.declared) == count
        assert arguments.declared["multi_head_latent_attention"].where.startswith("mindspeed/arguments.py:")
        assert arguments.read_at("nobody_reads_this") is None
        reads_both = arguments.read_at("multi_latent_attention") is not None
        assert reads_both == (commit == MINDSPEED_7FF81)
