"""From a recipe to the argument list and the environment."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.recipes.recipe.recipe_paths import split_function
from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.recipes.recipe.trainer_command import Command, hydra_text, ray_options
from npu_rl.recipes.recipe.trainer_settings import (
    config_location,
    keys_without_effect,
    last_settings,
    list_settings,
)
from tests.config.documents import write
from tests.recipes.examples import rendered

BASE: dict[str, Any] = {
    "schema": 1, "name": "r", "title": "t", "manifest": "quickstart", "device": "cpu", "steps": 7,
    "model": {"make": "tiny-deepseek-v3"}, "data": {"make": "digit-questions"},
    "rollout": {"engine": "hf", "responses": 8}, "actor": {"strategy": "fsdp"},
    "optimizer": {"lr": "1e-6"}, "cluster": {"dies": 1},
}  # fmt: skip


def recipe(**changes: Any) -> Recipe:
    return Recipe.model_validate({**BASE, **changes})


def pairs(command: Command) -> dict[str, str]:
    return dict(setting.lstrip("+").split("=", 1) for setting in command.settings)


@pytest.mark.parametrize("strategy", ["fsdp", "megatron"])
def test_whole_checkpoints_and_the_one_being_written(strategy: str) -> None:
    """verl deletes down to one less than its number before it writes. Numbers under overrides are verl's own."""
    actor, critic = "trainer.max_actor_ckpt_to_keep", "trainer.max_critic_ckpt_to_keep"

    def sent(keep: int | None, **overrides: Any) -> tuple[str | None, str | None]:
        checkpoint = {"every": 5} if keep is None else {"every": 5, "keep": keep}
        made = recipe(actor={"strategy": strategy}, checkpoint=checkpoint, overrides=overrides)
        given = pairs(rendered(made))
        return given.get(actor), given.get(critic)

    assert sent(1) == ("2", "2") and sent(3) == ("4", "4")
    assert sent(None) == (None, None)
    for own in (1, 0, -1, 5):
        assert sent(None, **{actor: own}) == (str(own), None)
        assert sent(2, **{actor: own}) == (str(own), "3")
    assert sent(2, **{actor: "null"}) == ("null", "3")


MANAGER = """
class BaseCheckpointManager:
    def ensure_checkpoint_capacity(self, max_ckpt_to_keep: int):
        if not (max_ckpt_to_keep and isinstance(max_ckpt_to_keep, int) and max_ckpt_to_keep > {least}):
            return
"""
BACKEND = "class CheckpointManager:\n    def save(self):\n        self.ensure_checkpoint_capacity(max_ckpt_to_keep)\n"


@pytest.mark.parametrize("strategy", ["fsdp", "megatron"])
@pytest.mark.parametrize(("least", "sent"), [(1, {1: "1", 2: "3", 3: "4"}), (0, {1: "2", 2: "3", 3: "4"})])
def test_a_tree_that_saves_before_it_deletes_the_last(
    tmp_path: Path, strategy: str, least: int, sent: dict[int, str]
) -> None:
    """From 1430cb9a0 on verl deletes the only checkpoint once the next is saved, if its number is 1."""
    folder = tmp_path / "verl/utils/checkpoint"
    backend = folder / f"{strategy}_checkpoint_manager.py"
    write(folder / "checkpoint_manager.py", MANAGER.replace("{least}", str(least)))
    write(backend, BACKEND)
    keys = ("trainer.max_actor_ckpt_to_keep", "trainer.max_critic_ckpt_to_keep")
    for keep, expected in sent.items():
        made = recipe(actor={"strategy": strategy}, checkpoint={"every": 5, "keep": keep})
        given = pairs(rendered(made, code=tmp_path))
        assert [given[key] for key in keys] == [expected, expected]
    own = recipe(actor={"strategy": strategy}, checkpoint={"keep": 1}, overrides={keys[0]: 5})
    assert pairs(rendered(own, code=tmp_path))[keys[0]] == "5"
    backend.write_text(BACKEND.replace("ensure_checkpoint_capacity", "remove_previous"))
    made = recipe(actor={"strategy": strategy}, checkpoint={"every": 5, "keep": 1})
    assert pairs(rendered(made, code=tmp_path))[keys[0]] == "2"


def test_one_word_is_another_key_on_the_other_backend() -> None:
    """One that a backend has no key for is reported; what is left out is not sent."""
    offload = {"parameters": True}
    fsdp = pairs(rendered(recipe(offload=offload)))
    megatron = pairs(rendered(recipe(offload=offload, actor={"strategy": "megatron"})))
    assert fsdp["actor_rollout_ref.actor.fsdp_config.param_offload"] == "true"
    assert megatron["actor_rollout_ref.actor.megatron.param_offload"] == "true"
    assert not any("fsdp_config" in key for key in megatron)
    assert "actor_rollout_ref.rollout.temperature" not in fsdp
    for strategy, unheard in (("fsdp", [("actor", "parallel", "tensor")]), ("megatron", [])):
        made = recipe(actor={"strategy": strategy, "parallel": {"tensor": 2}})
        assert keys_without_effect(made) == unheard


def test_an_override_is_last_and_numbers_are_numbers() -> None:
    given = recipe(overrides={"actor_rollout_ref.actor.optim.lr": "5e-7", "a.b": "1", "a.c": "x1"})
    last = last_settings(list_settings(given))
    assert last["actor_rollout_ref.actor.optim.lr"].value == 5e-7
    assert (last["a.b"].value, last["a.c"].value) == (1, "x1")
    assert list(last)[-2:] == ["a.b", "a.c"]


@pytest.mark.parametrize("strategy", ["fsdp", "fsdp2", "megatron"])
def test_the_model_engine_follows_from_the_strategy(strategy: str) -> None:
    """verl 0.7.1 and newer choose the backend's files by `model_engine`, whose default is dp."""
    given = recipe(actor={"strategy": strategy})
    chosen = "megatron" if strategy == "megatron" else None
    known = {"known": {"model_engine"}, "groups": ["model_engine"]}
    assert pairs(rendered(given, **known)).get("model_engine") == chosen
    assert config_location(given).choices.get("model_engine") == chosen
    assert "model_engine" not in pairs(rendered(given))  # an older tree
    own = recipe(actor={"strategy": strategy}, overrides={"model_engine": "dp"})
    assert "model_engine=dp" in rendered(own, **known).settings
    assert config_location(own).choices == {"model_engine": "dp"}


def test_paths_are_absolute_and_where_they_belong() -> None:
    given = recipe(
        model={"path": "./model"}, data={"train": ["./a.parquet", "/b.parquet", "hdfs://c/d"], "test": ["./t"]},
        reward={"function": "npu_rl_runtime/rewards/digit_share.py:compute_score"},
    )  # fmt: skip
    made = pairs(rendered(given))
    assert made["actor_rollout_ref.model.path"] == "/recipes/model"
    assert made["data.train_files"] == "[/recipes/a.parquet,/b.parquet,hdfs://c/d]"
    assert made["custom_reward_function.path"] == "/ws/code/npu_rl_runtime/rewards/digit_share.py"
    named = pairs(rendered(recipe(model={"path": "Qwen/Qwen2.5-0.5B"})))
    assert named["actor_rollout_ref.model.path"] == "Qwen/Qwen2.5-0.5B"
    own = pairs(rendered(recipe(reward={"function": "./mine.py:score"})))
    assert own["custom_reward_function.path"] == "/recipes/mine.py"
    assert own["custom_reward_function.name"] == "score"
    assert split_function("a.py") == ("a.py", "compute_score")


def test_the_runs_own_keys() -> None:
    made = pairs(rendered(recipe()))
    assert made["trainer.default_local_dir"] == "/ws/runs/r/checkpoints"
    assert made["trainer.resume_mode"] == "disable"
    assert made["trainer.total_epochs"] == "7"
    filtered = {"algorithm.filter_groups.enable": "true", "algorithm.filter_groups.max_num_gen_batches": "3"}
    assert pairs(rendered(recipe(overrides=filtered)))["trainer.total_epochs"] == "21"  # a batch each time
    endless = {**filtered, "algorithm.filter_groups.max_num_gen_batches": "0"}
    assert pairs(rendered(recipe(overrides=endless)))["trainer.total_epochs"] == "700"
    assert pairs(rendered(recipe(), resume=True))["trainer.resume_mode"] == "auto"
    assert pairs(rendered(recipe(logging={"backends": ["wandb"]})))["trainer.logger"] == "[console,wandb]"


@pytest.mark.parametrize(
    ("logging", "steps", "validation"),
    [
        ({"samples": "true"}, True, True),
        ({"samples": "validation"}, False, True),
        ({"samples": "false"}, False, False),
        ({}, True, True),
    ],
)
def test_which_samples_are_written(logging: dict[str, str], steps: bool, validation: bool) -> None:
    """Those of validations cost nothing but the writing: the trainer decodes them whether they are written or not."""
    made, folder = pairs(rendered(recipe(logging=logging))), "/ws/runs/r/samples"
    assert made.get("trainer.rollout_data_dir") == (folder if steps else None)
    assert made.get("trainer.validation_data_dir") == (f"{folder}/validation" if validation else None)


def test_it_is_an_argument_list_and_no_shell_ever() -> None:
    command = rendered(recipe(overrides={"a.b": "x; rm -rf $HOME 'y'"}))
    assert "trainer.device=npu" in rendered(recipe(), known={"trainer.device"}).settings
    assert command.argv[:4] == ["/py", "-m", "npu_rl_driver", "verl.trainer.main_ppo"]
    assert r"++a.b='x; rm -rf $HOME \'y\''" in command.argv


def test_the_environment_and_who_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/cann/site-packages", "/ws/code", ""]))
    given = recipe(env={"VLLM_USE_V1": "0", "MINE": "a b"}, adaptations={"hf-rollout-repeats-once": "false"})
    environment = rendered(given, manifest_env={"VLLM_USE_V1": "1", "OMP_NUM_THREADS": "4"}).environment
    assert environment["PYTHONPATH"].split(os.pathsep) == ["/on", "/ws/code", "/cann/site-packages"]
    assert (environment["VLLM_USE_V1"], environment["MINE"]) == ("0", "a b")
    assert environment["OMP_NUM_THREADS"] == "4"
    assert environment["NPU_RL_HF_ROLLOUT_REPEATS_ONCE"] == "0"
    assert environment["NPU_RL_STANDINS"] == "cpu"
    assert environment["NPU_RL_RUN"] == "0123456789abcdef"
    assert rendered(given, rollout_standin=True).environment["NPU_RL_STANDINS"] == "cpu,rollout"


def test_what_belongs_to_one_attempt_is_kept_apart() -> None:
    """A cluster's environment, and the script for work by hand, hold nothing of one run."""
    command = rendered(recipe(env={"MINE": "a b"}), packages=["torch"])
    assert set(command.own) == {
        "TENSORBOARD_DIR",
        "NPU_RL_RUN",
        "NPU_RL_USAGE",
        "NPU_RL_SEED",
    }
    assert set(command.driver) == {"NPU_RL_RAY", "NPU_RL_NODES"}
    assert not {*command.own, *command.driver, "PYTHONPATH"} & set(command.shared)
    assert "0123456789abcdef" not in str(command.shared) and "attempts" not in str(command.shared)
    told = json.loads(command.driver["NPU_RL_NODES"])
    assert told["paths"] == ["/on", "/ws/code"] and told["packages"] == ["torch"] and told["by_hook"] == []
    hidden = rendered(recipe(env={"A_TOKEN": "x"}), secrets=["A_TOKEN"])
    assert json.loads(hidden.driver["NPU_RL_NODES"])["by_hook"] == ["A_TOKEN"]
    assert {"MINE", "NPU_RL_RUN", "TENSORBOARD_DIR"} < set(told["variables"])
    assert not {"PYTHONPATH", "PYTHONPYCACHEPREFIX", "NPU_RL_RAY"} & set(told["variables"])  # each node's own
    own = rendered(recipe(env={"TENSORBOARD_DIR": "/mine"}))
    assert own.environment["TENSORBOARD_DIR"] == "/mine"


def test_an_npu_recipe_stands_in_for_nothing() -> None:
    given = recipe(device="npu", cluster={"dies": 16, "nodes": 16, "address": "h:6766", "interface": "enp1"})
    environment = rendered(given).environment
    assert environment["PYTHONPYCACHEPREFIX"] == "/ws/pycache" and environment["NPU_RL_BYTE_CODE"] == "k"
    assert "NPU_RL_STANDINS" not in environment and "CUDA_VISIBLE_DEVICES" not in environment
    names = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
    assert {environment[name] for name in names} == {"enp1"}
    assert json.loads(environment["NPU_RL_RAY"]) == {"address": "h:6766"}


def test_one_machine_starts_a_ray_of_its_own() -> None:
    options = ray_options(recipe(device="npu", cluster={"dies": 16}), Path("/tmp/ray"))
    assert options["address"] == "local"  # whatever RAY_ADDRESS says
    assert options["resources"] == {"NPU": 16}
    assert "num_cpus" not in options
    assert ray_options(recipe(), Path("/tmp/ray"))["num_cpus"] == 4


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=12),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.rehearsal
@given(values)
def test_hydra_reads_back_the_same_value(value: object) -> None:
    parser = pytest.importorskip("hydra.core.override_parser.overrides_parser").OverridesParser.create()
    assert plain(parser.parse_override(f"k={hydra_text(value)}").value()) == typed(value)


def plain(value: Any) -> Any:
    if isinstance(value, list):
        return [plain(item) for item in value]
    value = getattr(value, "text", value)  # a QuotedString
    return (type(value), value)


def typed(value: Any) -> Any:
    return [typed(item) for item in value] if isinstance(value, list) else (type(value), value)
