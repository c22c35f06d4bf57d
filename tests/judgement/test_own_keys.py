"""Recipes for trainers whose keys are their own: what is judged, from the text of the tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.recipes.judgement.judge import AssembledTree, Judgement, judge
from npu_rl.recipes.recipe.load_recipe import load_recipe
from tests.code_trees import lay
from tests.own_trainer import TREE, write_recipe

RIGHT = TREE


@pytest.fixture
def code(tmp_path: Path) -> Path:
    return lay(tmp_path / "code", RIGHT)


def judged(code: Path | None, *overrides: str, here: bool = False, more: str = "") -> Judgement:
    folder = code.parent if code else Path.cwd()
    tree = AssembledTree(code, "quickstart") if code else None
    return judge(load_recipe(str(write_recipe(folder, more)), overrides), tree, here=here)


def line_of(judgement: Judgement, rule: str) -> str:
    (one,) = [one for one in judgement.findings if one.rule == rule]
    return str(one)


def beside_environment(judgement: Judgement) -> list[str]:
    """The rules of the findings, without those on the variables of the quickstart's manifest."""
    return [one.rule for one in judgement.findings if one.rule != "environment-name"]


def test_a_right_recipe_has_no_finding_and_says_what_is_not_checked(code: Path) -> None:
    judgement = judged(code, "rl.n_samples_per_prompt=4", "rl.sampling.top_k=5", "actor.model=small")
    assert beside_environment(judgement) == []
    assert {"training.train_iters", "rl.sampling.top_k", "model.small.num_layers"} <= judgement.known
    assert judgement.plan is None


@pytest.mark.parametrize(
    ("key", "why", "fix"),
    [
        ("rl.n_samples_per_prompts", "RLConfig has no n_samples_per_prompts", "rl.n_samples_per_prompt"),
        ("training.train_iter", "TrainingConfig has no train_iter", "training.train_iters"),
        ("model.small.num_layer", "TrainingConfig has no num_layer", "model.small.num_layers"),
        ("trainin.seed", "the trainer's configuration has no section trainin", "training.seed"),
    ],
)  # fmt: skip
def test_an_unknown_key_of_the_command_line_is_an_error(code: Path, key: str, why: str, fix: str) -> None:
    text = line_of(judged(code, f"overrides.{key}=1"), "unknown-key")
    assert text.startswith(f"command line: overrides.{key}=1: overrides['{key}']: unknown key {key}: {why}")
    assert f"fix: write overrides.{fix} in place of overrides.{key} [unknown-key]" in text


@pytest.mark.parametrize(
    "override",
    [
        "trainer.keys.steps=training.iters",
        "trainer.keys.checkpoint.load=actor.loads",
        "trainer.resume={actor.finetunes: false}",
        "trainer.paths=[actor.loads]",
    ],
)
def test_the_words_for_keys_are_checked_too(code: Path, override: str) -> None:
    assert "unknown key" in line_of(judged(code, override), "unknown-key")


def test_a_hyphen_is_what_the_class_takes_it_for(code: Path) -> None:
    assert judged(code, "rl.shuffle-mini-batch=true").ok
    assert not judged(code, "rl.n-samples=1").ok


def test_a_class_or_function_that_the_code_has_not_is_an_error(code: Path) -> None:
    found = judged(code, "trainer.sections={rl: own.config.rl.Nothing}")
    texts = [str(one) for one in found.errors]
    assert any("trainer.sections.rl: the code has no class own.config.rl.Nothing" in text for text in texts)
    assert [one.rule for one in judged(code, "trainer.config=other").errors] == ["trainer-config"]


def test_keys_that_npu_rl_sets_are_refused_and_a_second_value_is_noted(code: Path) -> None:
    reserved = line_of(judged(code, "actor.save=/x"), "reserved-key")
    assert "npu-rl puts checkpoints into the run's folder" in reserved
    assert "hydra.run.dir" in line_of(judged(code, "hydra.run.dir=/x"), "reserved-key")
    noted = line_of(judged(code, "training.train_iters=6"), "key-set-twice")
    assert "steps sets this key too" in noted and "the override wins" in noted


def test_another_size_than_the_clusters_is_an_error(code: Path) -> None:
    text = line_of(judged(code, "rl.npus=16"), "cluster-size")
    assert "rl.npus is 16, and cluster.dies gives 2" in text
    assert judged(code, "rl.npus=2").ok


def test_paths_have_to_exist_where_it_runs_and_may_be_the_beginning_of_names(
    code: Path, tmp_path: Path
) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "data_packed_input_ids.bin").touch()
    given = ["actor.load=./weights", "training.data_path=./data"]
    more = "overrides: {actor.load: ./weights, training.data_path: ./data}\n"
    assert [one for one in judged(code, here=True, more=more).findings if one.rule == "trainer-path"] == []
    missing = [str(one) for one in judged(code, *given[:1], here=True).findings if one.rule == "trainer-path"]
    assert any("training.data_path: there is no '/data/prompts'" in text for text in missing)
    assert beside_environment(judged(code)) == []


@pytest.mark.parametrize(
    ("path", "command"),
    [
        (
            "/d/deepscaler/data",
            "npu-rl data prepare deepscaler --input FILE --output /d/deepscaler --for mindspeed-rl --tokenizer "
            "DIR, or ",
        ),
        (
            "{tmp}/prompts",
            "npu-rl data prepare deepscaler --input FILE --output {tmp}/deepscaler --for mindspeed-rl --tokenizer "
            "DIR and set overrides.megatron_training.data_path={tmp}/deepscaler/data, or ",
        ),
    ],
)
def test_missing_data_of_mindspeed_rl_comes_with_the_command_that_makes_it(
    tmp_path: Path, path: str, command: str
) -> None:
    key, given = "overrides.megatron_training.data_path", path.format(tmp=tmp_path)
    loaded = load_recipe("mindspeed-rl-grpo-qwen25-7b", [f"{key}={given}"])
    (one,) = (one for one in judge(loaded, None, here=True).errors if one.trainer_key == key[10:])
    assert one.fix.startswith(command.format(tmp=tmp_path)), one.fix


def test_a_relative_path_of_the_trainers_own_file_would_be_of_the_runs_folder(tmp_path: Path) -> None:
    text = RIGHT["configs/own.yaml"].replace("/weights", "./ckpt")
    code = lay(tmp_path / "code", {**RIGHT, "configs/own.yaml": text})
    line = line_of(judged(code), "trainer-path")
    assert "actor.load: './ckpt' is relative to the working folder" in line
    assert "fix: set overrides.actor.load to one that every node of the run has" in line


def test_several_machines_need_the_address_of_ray(code: Path) -> None:
    found = judged(code, "device=npu", "cluster.nodes=2", here=True)
    assert any(one.rule == "cluster-address" for one in found.errors)


def test_without_a_workspace_the_recipe_alone_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert judged(None, "rl.nothing=1").findings == ()
