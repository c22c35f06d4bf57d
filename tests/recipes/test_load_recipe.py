"""Loading recipes: the quickstart, types, `extends:`, local paths and digests."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.common.bundled import bundled_recipes
from npu_rl.common.errors import RecipeError
from npu_rl.common.yaml_documents.document_kind import InvalidRecipe, find_manifest
from npu_rl.recipes.recipe.load_recipe import load_recipe
from tests.config.documents import write
from tests.recipes.examples import EVERYTHING, HERE, MINIMAL


def test_every_bundled_recipe_loads_by_name_and_is_called_by_its_file() -> None:
    assert "quickstart" in bundled_recipes()
    for name, path in bundled_recipes().items():
        loaded = load_recipe(name)
        assert (loaded.recipe.name, loaded.path, loaded.bundled) == (name, path, True)
        assert find_manifest(loaded.manifest).is_file()
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert first == "# yaml-language-server: $schema=./recipe.schema.json"


def test_everything_is_everything() -> None:
    """The example sets every key, so that the tests below it look at every key."""

    def unset(model: object, path: str) -> list[str]:
        missing = []
        for name in type(model).model_fields:  # type: ignore[attr-defined]
            value = getattr(model, name)
            if hasattr(type(value), "model_fields"):
                missing += unset(value, f"{path}{name}.")
            elif name not in model.model_fields_set:  # type: ignore[attr-defined]
                missing.append(path + name)
        return missing

    assert [name for name in unset(load_recipe(str(EVERYTHING)).recipe, "") if name[:8] != "trainer."] == [
        "extends",
        "model.make",
        "data.make",
        "faults.accept",  # of faults that the example's tree does not have
    ]


def test_scalars_are_typed_by_the_schema() -> None:
    recipe = load_recipe(str(EVERYTHING)).recipe
    assert recipe.steps == 1000
    assert recipe.optimizer.lr == 1e-6 and isinstance(recipe.optimizer.lr, float)
    assert recipe.rollout.temperature == 1.0 and isinstance(recipe.rollout.temperature, float)
    assert recipe.reward.goal == 0.5 and recipe.rollout.top_k == -1
    assert recipe.model.remove_padding is True
    assert recipe.env == {"HCCL_BUFFSIZE": "300", "VLLM_USE_V1": "1", "EMPTY": ""}
    assert recipe.model.config == {
        "num_hidden_layers": 61,
        "rope_scaling": {"type": "yarn", "factor": 40.0},
        "architectures": ["DeepseekV3ForCausalLM"],
        "torch_dtype": None,
    }
    arguments = recipe.reward.arguments
    assert arguments == {"digit": "7", "scale": 7, "name": "seven", "deep": [1, "1", {"on": True}]}
    assert type(arguments["digit"]) is str, "quotes make a text of it, a plain one"


def test_a_child_is_laid_over_its_parent() -> None:
    loaded = load_recipe(str(HERE / "good" / "child.yaml"))
    recipe = loaded.recipe
    assert (recipe.name, recipe.steps, recipe.seed) == ("child", 20, 7)
    assert recipe.model.make == "tiny-deepseek-v3" and recipe.model.path is None
    assert "rope_scaling" not in recipe.model.config and recipe.model.config["num_hidden_layers"] == 2
    assert recipe.data.train == ["./mine.parquet"] and recipe.data.test == ["./test.parquet"]
    assert (recipe.actor.parallel.pipeline, recipe.actor.parallel.expert) == (2, 32)
    assert recipe.optimizer.schedule is None
    assert recipe.overrides == {
        "actor_rollout_ref.actor.checkpoint.contents": ["model"], "trainer.new": 1,
    }  # fmt: skip
    assert list(loaded.files) == ["child.yaml", "everything.yaml"]
    assert loaded.where("steps").endswith("child.yaml:4")
    assert loaded.where("actor", "parallel", "expert").endswith("everything.yaml:71")
    assert loaded.where("actor", "nobody").endswith("child.yaml:10")
    assert loaded.where("overrides", "trainer.new").endswith("child.yaml:12")
    assert loaded.data["steps"] == "20"


BESIDE = """schema: 1
name: base
title: Base
manifest: ../manifests/mine.yaml
device: npu
steps: 1
model: {path: ./model, checkpoint: ../checkpoint}
data: {train: [./a.parquet, /abs/b.parquet, hub/c.parquet], test: [../d.parquet]}
reward: {function: "./rewards/r.py:score"}
rollout: {engine: vllm, responses: 1}
actor: {strategy: megatron}
optimizer: {lr: 1e-6}
cluster: {dies: 1}
"""


def test_local_paths_follow_the_file_that_wrote_them(tmp_path: Path) -> None:
    write(tmp_path / "base" / "base.yaml", BESIDE)
    path = write(tmp_path / "mine" / "r.yaml", "extends: ../base/base.yaml\ndata: {test: [./own.parquet]}\n")
    loaded = load_recipe(path)
    recipe = loaded.recipe
    assert recipe.manifest == "../manifests/mine.yaml"
    assert (recipe.model.path, recipe.model.checkpoint) == ("../base/model", "../checkpoint")
    assert recipe.data.train == ["../base/a.parquet", "/abs/b.parquet", "hub/c.parquet"]
    assert recipe.data.test == ["./own.parquet"]
    assert recipe.reward.function == "../base/rewards/r.py:score"
    assert loaded.locate(recipe.model.path or "").resolve() == (tmp_path / "base" / "model").resolve()
    assert loaded.locate("/abs/b.parquet") == Path("/abs/b.parquet")
    assert loaded.locate("hub/c.parquet") == Path("hub/c.parquet")
    assert loaded.locate("~/d") == Path.home() / "d"
    assert Path(loaded.manifest).resolve() == (tmp_path / "manifests" / "mine.yaml").resolve()


def test_a_recipe_of_ones_own_extends_a_bundled_one(tmp_path: Path) -> None:
    loaded = load_recipe(write(tmp_path / "r.yaml", "extends: quickstart\nname: mine\nsteps: 3\n"))
    assert (loaded.recipe.name, loaded.recipe.steps, loaded.recipe.device) == ("mine", 3, "cpu")
    assert list(loaded.files) == ["r.yaml", "bundled:quickstart.yaml"]
    assert loaded.where("optimizer", "lr").startswith("bundled:quickstart.yaml:")


def test_a_bundled_recipe_cannot_name_files_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where npu-rl lies is nobody's business, and a copy of the recipe must mean the same."""
    (tmp_path / "manifests").mkdir()
    write(tmp_path / "recipes" / "beside.yaml", BESIDE)
    write(tmp_path / "recipes" / "path.yaml", "extends: ./beside.yaml\n")
    monkeypatch.setattr("npu_rl.common.bundled._PACKAGE", tmp_path / "npu_rl")
    with pytest.raises(InvalidRecipe, match="6 errors") as caught:
        load_recipe("beside")
    assert str(caught.value).count("a bundled recipe can't name files beside it") == 6
    with pytest.raises(RecipeError, match="extends a path"):
        load_recipe("path")


def test_the_digest_is_that_of_what_is_said(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.yaml", MINIMAL)
    asked = load_recipe(whole, ["steps=3"])
    other = load_recipe(write(tmp_path / "other.yaml", MINIMAL.replace("steps: 2", "steps: 3")))
    assert asked.digest == other.digest != load_recipe(whole).digest, "it doesn't matter who says it"
    text, number = (load_recipe("quickstart", [f"reward.arguments.digit={x}"]) for x in ('"7"', "7"))
    assert text.digest != number.digest, "they are different arguments of the reward function"
