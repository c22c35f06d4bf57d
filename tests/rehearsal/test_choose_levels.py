"""Which levels a recipe can be rehearsed at, said before anything starts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from npu_rl.common.errors import HostError, RecipeError, UsageError
from npu_rl.common.interpreter import Interpreter
from npu_rl.rehearsal.choose_levels import QUICK_STEPS, choose_levels, groups_obstacle
from npu_rl.training.host.vllm_environment import REQUIREMENTS, vllm_version
from npu_rl.training.run.prepare import Prepared
from tests.code_trees import lay
from tests.training.fake_run import FakeRun

FLAGSHIP = "deepseek-r1-zero-256die"
FSDP = {"verl/workers/fsdp_workers.py": ""}
MEGATRON = {
    "verl/workers/megatron_workers.py": "",
    "mindspeed/__init__.py": "",
    "vllm/__init__.py": "",
    "npu_rl_runtime/rollout_offload/__init__.py": "",
}


def prepared(folder: Path, files: dict[str, str], recipe: str = "quickstart", **versions: str) -> Prepared:
    """A recipe over a tree of these files; versions: of the packages that the training interpreter has."""
    lay(folder / "code", files)
    made = FakeRun(folder, recipe).prepared([])
    python = folder / "probed"
    found = {
        "path": str(python),
        "version": "3.11.7",
        "packages": versions,
    }
    python.write_text(f"#!/bin/sh\necho '{json.dumps(found)}'\n")
    python.chmod(0o755)
    return replace(made, interpreter=Interpreter(str(python), "3.11.7"))


def of_steps(made: Prepared, steps: int) -> Prepared:
    return made.with_recipe(made.recipe.model_copy(update={"steps": steps}))


def with_vllm(version: str) -> dict[str, str]:
    return {**MEGATRON, f"vllm-{version}.dist-info/METADATA": ""}


def test_an_unknown_level_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Unknown rehearsal level 'quik'.*quick"):
        choose_levels(prepared(tmp_path, FSDP), "quik")


def test_all_of_a_recipe_for_fsdp_is_imports_layout_and_train(tmp_path: Path) -> None:
    chosen = choose_levels(of_steps(prepared(tmp_path, FSDP), 60), "all")
    assert chosen.levels == ("imports", "layout", "train") and chosen.steps is None and not chosen.left_out


@pytest.mark.parametrize(
    ("steps", "left_out"),
    [
        (7, ["validation, save and resume", "the reward's goal"]),
        (8, ["the reward's goal"]),
        (59, ["the reward's goal"]),
    ],
)
def test_what_a_short_training_does_not_come_to_is_named(
    steps: int, left_out: list[str], tmp_path: Path
) -> None:
    for level in ("train", "all"):
        chosen = choose_levels(of_steps(prepared(tmp_path, FSDP), steps), level)
        assert [part.what for part in chosen.left_out] == left_out
        assert f"steps, and {steps} are trained" in chosen.left_out[0].why


def test_quick_is_one_training_of_a_few_steps_and_names_what_it_leaves_out(tmp_path: Path) -> None:
    chosen = choose_levels(of_steps(prepared(tmp_path, FSDP), 60), "quick")
    assert (chosen.levels, chosen.cases, chosen.steps) == (("train",), ("expert",), QUICK_STEPS)
    assert [(part.what, part.why) for part in chosen.left_out] == [
        ("imports, layout", "quick only trains"),
        ("validation, save and resume", "they take 8 steps, and 3 are trained"),
        ("the reward's goal", "it takes 60 steps, and 3 are trained"),
    ]


def test_workers_without_a_place_for_the_standin_are_refused_and_left_out_of_all(tmp_path: Path) -> None:
    without = prepared(tmp_path, {"verl/workers/__init__.py": ""})
    for level in ("train", "quick"):
        with pytest.raises(
            RecipeError, match=r"The stand-in for the rollout is made for .*fsdp_workers\.py"
        ) as caught:
            choose_levels(without, level)
        assert caught.value.where
    chosen = choose_levels(without, "all")
    assert chosen.levels == ("imports", "layout")
    (left_out,) = chosen.left_out
    assert left_out.what == "train" and "fsdp_workers.py" in left_out.why


VLLM_PACKAGES = dict(requirement.split("==") for requirement in REQUIREMENTS)


def test_all_of_the_flagship_is_imports_layout_and_rollout(tmp_path: Path) -> None:
    chosen = choose_levels(prepared(tmp_path, with_vllm("0.9.1+empty"), FLAGSHIP, **VLLM_PACKAGES), "all")
    assert (chosen.levels, chosen.cases) == (("imports", "layout", "rollout"), ("expert", "pipeline"))
    quick = choose_levels(prepared(tmp_path, {}, FLAGSHIP, **VLLM_PACKAGES), "quick")
    assert (quick.levels, quick.cases) == (("rollout",), ("expert",))
    assert ("rollout, pipeline parallel", "quick trains one case") in [
        (part.what, part.why) for part in quick.left_out
    ]


def test_packages_that_the_engine_imports_are_required_at_once(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="lacks 10 of 10 packages that vLLM's engine requires"):
        choose_levels(prepared(tmp_path, with_vllm("0.9.1+empty"), FLAGSHIP), "all")


def test_a_vllm_without_standins_leaves_the_level_train_and_the_trainings_groups(tmp_path: Path) -> None:
    newer = prepared(tmp_path, with_vllm("0.18.0+empty"), FLAGSHIP)
    assert vllm_version(newer.paths.code) == "0.18.0"
    with pytest.raises(
        RecipeError, match=r"stand-ins for vLLM.s compiled code are for 0\.9\.1, and the tree has 0\.18"
    ):
        choose_levels(newer, "rollout")
    chosen = choose_levels(of_steps(newer, 60), "all")
    assert chosen.levels == ("imports", "layout", "train")
    assert [part.what for part in chosen.left_out] == ["rollout", "layout, the rollout's groups"]
    assert "the tree has 0.18.0" in chosen.left_out[0].why
    assert [part.what for part in choose_levels(newer, "quick").left_out][:2] == [
        "imports, layout",
        "rollout",
    ]
    assert "vLLM 0.18.0" in (groups_obstacle(newer) or "")


SERVER = {"verl/workers/engine_workers.py": "", "vllm/__init__.py": "", "mindspeed/__init__.py": ""}


def with_server(vllm: str = "0.18.0+empty") -> dict[str, str]:
    return {**SERVER, f"vllm-{vllm}.dist-info/METADATA": ""}


def test_a_trainer_with_servers_has_vllm_at_the_level_train(tmp_path: Path) -> None:
    chosen = choose_levels(of_steps(prepared(tmp_path, with_server(), "today-grpo-qwen3-30b"), 60), "all")
    assert chosen.levels == ("imports", "layout", "train")
    assert [part.what for part in chosen.left_out] == ["layout, the rollout's groups"]
    quick = choose_levels(prepared(tmp_path / "quick", with_server(), "today-grpo-qwen3-235b"), "quick")
    assert quick.levels == ("train",)


@pytest.mark.parametrize(
    ("recipe", "vllm", "why"),
    [
        ("today-grpo-moonlight-16b", "0.18.0+empty", "latent attention"),
        ("today-dapo-deepseek-v3", "0.18.0+empty", "latent attention"),
        ("newest-gspo-qwen3-30b", "0.20.0+empty", "are for 0.18.0, and the tree has 0.20.0"),
    ],
)
def test_what_no_server_on_a_cpu_can_do_is_refused(tmp_path: Path, recipe: str, vllm: str, why: str) -> None:
    with pytest.raises(RecipeError) as caught:
        choose_levels(prepared(tmp_path, with_server(vllm), recipe), "train")
    assert why in (caught.value.why or "")


def test_megatron_without_mindspeed_trains_at_no_level(tmp_path: Path) -> None:
    files = {name: text for name, text in with_vllm("0.9.1").items() if not name.startswith("mindspeed")}
    with pytest.raises(RecipeError, match="only with MindSpeed in the tree"):
        choose_levels(prepared(tmp_path, files, FLAGSHIP), "train")
    assert choose_levels(prepared(tmp_path, {}, FLAGSHIP), "all").left_out[0].what == "train"


@pytest.mark.parametrize(
    ("files", "recipe", "level", "why"),
    [
        (FSDP, "quickstart", "rollout", "vLLM's engine with Megatron-core, and this recipe uses others"),
        (
            with_vllm("0.9.1"),
            "deepseek-v3-cann-256die",
            "rollout",
            "a resharding of their own: --rehearse=train",
        ),
    ],
)
def test_a_level_that_is_not_for_a_recipe_names_the_other(
    tmp_path: Path, files: dict[str, str], recipe: str, level: str, why: str
) -> None:
    with pytest.raises(RecipeError, match=why):
        choose_levels(prepared(tmp_path, files, recipe), level)
