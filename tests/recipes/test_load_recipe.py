"""Loading recipes: types, `extends:`, local paths, digests, and nothing but RecipeError."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu_rl.bundled import bundled_recipes, data_root
from npu_rl.config.find_file import find
from npu_rl.errors import RecipeError
from npu_rl.manifest.manifest_kind import find_manifest
from npu_rl.recipes.load_recipe import LoadedRecipe, load_recipe
from npu_rl.recipes.recipe_kind import RECIPE, InvalidRecipe
from npu_rl.recipes.schema import Recipe
from npu_rl.recipes.trainer_settings import list_settings as trainer_settings
from tests.recipes.examples import EVERYTHING, GOOD, HERE, MINIMAL, ids, write


def test_every_bundled_recipe_loads_by_name_and_is_called_by_its_file() -> None:
    assert "quickstart" in bundled_recipes()
    for name, path in bundled_recipes().items():
        loaded = load_recipe(name)
        assert (loaded.recipe.name, loaded.path, loaded.bundled) == (name, path, True)
        assert find_manifest(loaded.manifest).is_file()
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert first == "# yaml-language-server: $schema=./recipe.schema.json"


def test_the_quickstart() -> None:
    loaded = load_recipe("quickstart")
    recipe = loaded.recipe
    raw = (data_root() / "recipes" / "quickstart.yaml").read_bytes()
    assert loaded.files == {"bundled:quickstart.yaml": hashlib.sha256(raw).hexdigest()}
    assert (recipe.manifest, recipe.device, recipe.steps) == ("quickstart", "cpu", 60)
    assert (recipe.model.make, recipe.data.make) == ("tiny-deepseek-v3", "digit-questions")
    assert recipe.reward.arguments == {"digit": "7"}, "text, as the reward function compares it"
    assert recipe.reward.goal == 0.9
    assert recipe.cluster.world == 1
    said = {setting.key: setting.value for setting in trainer_settings(recipe)}
    assert said["actor_rollout_ref.model.override_config._attn_implementation"] == "eager"
    assert said["actor_rollout_ref.actor.optim.lr"] == 0.003
    assert said["actor_rollout_ref.rollout.n"] == 8


@pytest.mark.parametrize("path", GOOD, ids=ids)
def test_good_examples_load(path: Path) -> None:
    loaded = load_recipe(str(path))
    assert loaded.path == path.resolve() and not loaded.bundled
    assert len(loaded.digest) == 64


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

    assert unset(load_recipe(str(EVERYTHING)).recipe, "") == ["extends", "model.make", "data.make"]


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


def test_faults_of_a_parent_name_the_file_that_wrote_them(tmp_path: Path) -> None:
    write(tmp_path / "base" / "base.yaml", MINIMAL.replace("lr: 1e-3", "lr: high"))
    child = write(tmp_path / "r.yaml", "extends: base/base.yaml\nname: -child\nenv: ~\n")
    with pytest.raises(InvalidRecipe) as caught:
        load_recipe(child)
    found = [(Path(p.file).relative_to(tmp_path).as_posix(), p.line) for p in caught.value.problems]
    assert found == [("r.yaml", 2), ("r.yaml", 3), ("base/base.yaml", 11)]


BESIDE = """schema: 1
name: base
title: Base
manifest: ../manifests/mine.yaml
device: npu
steps: 1
model: {path: ./model, checkpoint: ../checkpoint}
data: {train: [./a.parquet, /abs/b.parquet, hub/c.parquet], test: [../d.parquet]}
reward: {function: "./rewards/r.py:score"}
rollout: {engine: vllm, answers: 1}
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
    assert Path(loaded.manifest).resolve() == (tmp_path / "manifests" / "mine.yaml").resolve()


@pytest.mark.parametrize("manifest", ["quickstart", "/abs/m.yaml"])
def test_a_manifest_that_is_not_beside_the_recipe_stays_as_it_is(tmp_path: Path, manifest: str) -> None:
    text = MINIMAL.replace("manifest: quickstart", f"manifest: {manifest}")
    assert load_recipe(write(tmp_path / "r.yaml", text)).manifest == manifest


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
    monkeypatch.setattr("npu_rl.bundled._PACKAGE", tmp_path / "npu_rl")
    with pytest.raises(InvalidRecipe, match="6 errors") as caught:
        load_recipe("beside")
    assert str(caught.value).count("a bundled recipe can't name files beside it") == 6
    with pytest.raises(RecipeError, match="extends a path"):
        load_recipe("path")


def test_find_recipe(tmp_path: Path) -> None:
    assert find(RECIPE, "quickstart") == data_root() / "recipes" / "quickstart.yaml"
    path = write(tmp_path / "r.yaml", MINIMAL)
    assert find(RECIPE, path) == Path(path)
    with pytest.raises(RecipeError, match="No such recipe file"):
        find(RECIPE, str(tmp_path / "nobody.yaml"))


def chain(folder: Path, length: int) -> str:
    write(folder / "0.yaml", MINIMAL)
    for index in range(1, length + 1):
        write(folder / f"{index}.yaml", f"extends: ./{index - 1}.yaml\n")
    return str(folder / f"{length}.yaml")


def test_eight_parents_and_no_more(tmp_path: Path) -> None:
    assert len(load_recipe(chain(tmp_path, 8)).files) == 9
    with pytest.raises(RecipeError, match="more than 8 levels of `extends:`"):
        load_recipe(chain(tmp_path, 9))


def same(left: LoadedRecipe, right: LoadedRecipe) -> bool:
    return left.digest == right.digest


def test_the_digest_is_that_of_what_is_said(tmp_path: Path) -> None:
    whole = load_recipe(write(tmp_path / "whole.yaml", MINIMAL))
    noisy = load_recipe(write(tmp_path / "noisy.yaml", "# why\n" + MINIMAL.replace("1e-3", "'0.001'")))
    child = load_recipe(write(tmp_path / "child.yaml", "extends: ./whole.yaml\n"))
    asked = load_recipe(str(tmp_path / "whole.yaml"), ["steps=3"])
    other = load_recipe(write(tmp_path / "other.yaml", MINIMAL.replace("steps: 2", "steps: 3")))
    assert same(whole, noisy) and same(whole, child) and not same(whole, other)
    assert same(asked, other), "it doesn't matter who says it"
    text, number = (load_recipe("quickstart", [f"reward.arguments.digit={x}"]) for x in ('"7"', "7"))
    assert not same(text, number), "they are different arguments of the reward function"


def test_the_digest_is_stable_across_releases(tmp_path: Path) -> None:
    """A run is resumed by it."""
    digest = load_recipe(write(tmp_path / "r.yaml", MINIMAL)).digest
    assert digest == "fe5cc7450b2c05e52afd1dd6456a4df3fcc74911c83510c41d59a0fe678dbbb4"


LINES = [line for path in GOOD for line in path.read_text(encoding="utf-8").splitlines()]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(GOOD),
    st.lists(
        st.tuples(
            st.integers(0, 90),
            st.sampled_from(["drop", "insert", "text"]),
            st.sampled_from(LINES),
            st.text(max_size=8),
        )
    ),
)
def test_a_damaged_recipe_raises_nothing_but_recipe_error(
    path: Path, edits: list[tuple[int, str, str, str]]
) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    for position, kind, line, text in edits:
        at = position % (len(lines) + 1)
        if kind == "drop":
            del lines[at : at + 1]
        else:
            lines.insert(at, line if kind == "insert" else text)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "r.yaml"
        target.write_text("\n".join(lines), encoding="utf-8", errors="replace")
        try:
            assert load_recipe(str(target)).recipe.schema_ == 1
        except RecipeError as error:
            assert "r.yaml" in str(error)


WORDS = " ".join(
    [
        *Recipe.model_fields,
        "path make config train test rows function lr dies engine answers strategy kl_loss",
    ]
)
KEYS = st.sampled_from(WORDS.replace("schema_", "schema").split()) | st.text(max_size=5)
VALUES = st.recursive(
    st.text(max_size=10)
    | st.sampled_from(["1", "-1", "1e-6", "./x", "hf", "fsdp", "true", "x.yaml", "1__0"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=8))
def test_any_tree_of_known_keys_raises_nothing_but_recipe_error(data: dict[str, object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "r.yaml"
        target.write_text(json.dumps(data), encoding="utf-8")
        try:
            assert load_recipe(str(target)).recipe.schema_ == 1
        except RecipeError as error:
            assert "r.yaml:" in str(error) or "no bundled recipe" in str(error)
