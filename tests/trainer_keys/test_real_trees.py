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
from npu_rl.recipes.trainer_code.source_index import SourceIndex
from npu_rl.recipes.trainer_keys.key_resolver import KeyResolver
from tests.code_trees import R1_ZERO_PINS, archive, check_recipe, known_keys, unpatched
from tests.training.test_hydra_compose import composed

MODULE = "verl.trainer.main_ppo"
VERL_54C9B = "54c9b7364c2d188b2ba4107404cfa3c2b446df19"
T = "actor_rollout_ref.actor.megatron.override_transformer_config"
A, R = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
# Keys that only the code has.
OF_THE_CODE = (
    *(
        f"{R}.limit_images",
        "custom_reward_function.reward_kwargs.digit",
        "data.gen_batch_size",
        f"{T}.q_lora_rank",
    ),
)
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


def test_every_key_of_verl_is_known_and_unusual_ones_too(code_tree: Path) -> None:
    """The other way round: nothing that the configuration files have is refused."""
    for config in ("ppo_trainer", "ppo_megatron_trainer"):
        resolver = KeyResolver(code_tree, ConfigLocation(MODULE, config))
        for key in (*known_keys(code_tree, config), *OF_THE_CODE):
            assert resolver.resolve(key).known, key


@pytest.mark.second
@pytest.mark.parametrize(
    ("key", "right"),
    [
        (f"{R}.engine_kwargs.vllm.enable_expert_paralel", f"{R}.engine_kwargs.vllm.enable_expert_parallel"),
        ("data.zzz", ""),
        ("algorithm.filter_groups.enabled", ""),
        (f"{A}.temperature", f"{R}.temperature"),
        (f"{A}.optim.lr_warmup_step", f"{A}.optim.lr_warmup_steps"),
    ],
)
def test_keys_nobody_reads(code_tree: Path, key: str, right: str) -> None:
    resolution = KeyResolver(code_tree, ConfigLocation(MODULE, "ppo_trainer")).resolve(key)
    assert not resolution.known and resolution.right == right


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
    assert found["custom_reward_function"]["reward_kwargs"] == {"digit": "7"}
    assert found["actor_rollout_ref"]["actor"]["optim"]["lr"] == 3e-3


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
        resolver = KeyResolver(code, ConfigLocation(MODULE, "ppo_megatron_trainer"))
        assert len(resolver.tree.entries) == 282
        assert resolver.resolve(f"{A}.optim.warmup_style").known
        assert not resolver.resolve(f"{A}.optim.lr_decay_style").known, "a key of later versions"

    def test_the_published_recipes_keys_have_readers(self, newer: Path) -> None:
        resolver = KeyResolver(newer, ConfigLocation(MODULE, "ppo_megatron_trainer"))
        assert [name for name in PUBLISHED if not resolver.resolve(f"{T}.{name}").known] == []
