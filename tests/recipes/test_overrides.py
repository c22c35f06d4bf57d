"""`key=value` on the command line: whose key it is, what its value is, and how faults are told."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu_rl.common.errors import RecipeError, UsageError
from npu_rl.common.yaml_documents.document_kind import InvalidRecipe
from npu_rl.recipes.recipe.key_map import dotted_keys, recipe_key_of, sections
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.recipes.recipe.schema import Recipe
from tests.config.documents import write
from tests.recipes.examples import MINIMAL


def loaded(*arguments: str) -> Recipe:
    return load_recipe("quickstart", arguments).recipe


def refused(*arguments: str) -> str:
    with pytest.raises(UsageError) as caught:
        load_recipe("quickstart", arguments)
    assert caught.value.exit_code == 2
    return str(caught.value)


def invalid(*arguments: str) -> str:
    with pytest.raises(InvalidRecipe) as caught:
        load_recipe("quickstart", arguments)
    return str(caught.value)


def test_keys_of_the_recipe() -> None:
    recipe = loaded(
        "steps=7", "optimizer.lr=1e-6", "model.config.vocab_size=128", "actor.kl_loss.use=false",
        "env.A=1", "adaptations.hf-rollout-repeat=false", "logging.backends=[console, wandb]",
        "reward.arguments={extra: [1, x]}", "title=two words", "actor.transformer.a=null-ish",
    )  # fmt: skip
    assert (recipe.steps, recipe.optimizer.lr, recipe.title) == (7, 1e-6, "two words")
    assert recipe.model.config == {"_attn_implementation": "eager", "vocab_size": 128}
    assert recipe.actor.kl_loss is not None
    assert (recipe.actor.kl_loss.use, recipe.actor.kl_loss.coefficient) == (False, 0.001)
    assert recipe.env == {"A": "1"} and recipe.adaptations == {"hf-rollout-repeat": False}
    assert recipe.logging.backends == ["console", "wandb"]
    assert recipe.reward.arguments == {"digit": "7", "extra": [1, "x"]}, "mappings merge, as in files"
    assert recipe.actor.transformer == {"a": "null-ish"}


def test_keys_of_the_trainer() -> None:
    recipe = loaded(
        "actor_rollout_ref.actor.ppo_epochs=2",
        "+actor_rollout_ref.model.override_config.x=true",
        "++critic.optim.lr=1e-5",
        "overrides.data.sampler.class_path=[a, '1']",
        "+trainer.balance_batch=False",
        "ray_init.num_cpus='\"null\"'",
        "overrides={trainer.esi_redundant_time: 5}",
    )
    assert recipe.overrides == {
        "actor_rollout_ref.actor.ppo_epochs": 2,
        "actor_rollout_ref.model.override_config.x": True,
        "critic.optim.lr": 1e-5,
        "data.sampler.class_path": ["a", "1"],
        "trainer.balance_batch": False,
        "ray_init.num_cpus": '"null"',
        "trainer.esi_redundant_time": 5,
    }
    assert loaded('ray_init.num_cpus="null"').overrides == {"ray_init.num_cpus": None}


@pytest.mark.parametrize("null", ["~", "null"])
def test_a_null_removes(null: str) -> None:
    assert loaded(f"reward.goal={null}", f"actor.kl_loss={null}").actor.kl_loss is None
    assert loaded(f"model.make={null}", "model.path=/m").model.path == "/m"
    message = invalid(f"rollout.top_p={null}", "overrides.a.b=~")
    assert f"rollout.top_p={null}: the recipe doesn't set it" in message
    assert "overrides['a.b']: the recipe doesn't set it, so there is nothing to remove; null gives" in message
    assert "overrides['a.b']['x:1']: has no value" in invalid("a.b={x:1}"), "YAML wants a space there"


@pytest.mark.parametrize("null", ["null", '"null"'])
def test_a_null_of_the_trainer_is_written_as_in_its_scripts(tmp_path: Path, null: str) -> None:
    """In a file, over a file and on the command line, also where a parent sets a null already; ~ removes it."""
    assert loaded(f"trainer_key.a={null}", f"+data.b={null}").overrides == {
        "trainer_key.a": None,
        "data.b": None,
    }
    parent = write(
        tmp_path / "parent.yaml", MINIMAL + f"overrides: {{a.b: 1, a.c: {null}, a.d: [1, {null}]}}\n"
    )
    assert load_recipe(str(parent)).recipe.overrides == {"a.b": 1, "a.c": None, "a.d": [1, None]}
    text = f"schema: 1\nextends: ./parent.yaml\noverrides: {{a.b: {null}, a.c: {null}, a.d: ~}}\n"
    child = write(tmp_path / "child.yaml", text)
    assert load_recipe(str(child)).recipe.overrides == {"a.b": None, "a.c": None}
    given = load_recipe(str(parent), [f"a.b={null}", f"a.c={null}", "a.d=~"])
    assert given.recipe.overrides == {"a.b": None, "a.c": None}
    assert given.digest == load_recipe(str(child)).digest


def test_faults_cite_the_argument() -> None:
    message = invalid("optimizer.lr=abc", "rollout.engine=vlm", "steps.x=1")
    assert message.startswith("3 invalid arguments\n  where: the command line\n")
    assert " optimizer.lr=abc: must be a number" in message
    assert " rollout.engine=vlm: must be 'hf' or 'vllm', not 'vlm'" in message
    assert " steps.x=1: steps: must be a whole number" in message
    assert "next:" not in message


def test_an_unknown_key_of_a_section_that_the_trainer_has_too() -> None:
    message = invalid("data.train_batch_size=8", "trainer.total_epochs=3", "optimizer.l=1")
    assert "data.train_batch_size=8: unknown key; did you mean 'data.batch'?" in message
    assert "if it is a key of the trainer, write overrides.trainer.total_epochs=..." in message
    assert "optimizer.l=1: unknown key; did you mean 'lr'?" in message


@pytest.mark.parametrize(
    ("argument", "why"),
    [
        ("steps", "it has no '='"),
        ("optimizer..lr=3", "a part of the key is empty"),
        ("optimizer.lr=", "it gives no value"),
        ("lr=1", "a recipe has no key 'lr'; did you mean 'optimizer.lr'?"),
        ("stepz=3", "did you mean 'steps'?\n  next:  Write steps=3."),
        ("optimiser.lr=2", "next:  Write optimizer.lr=2, or overrides.optimiser.lr=2 if it is a key of the trainer."),
        ("extends=quickstart", "the files are read before the command line"),
        ("~trainer.x=1", "Hydra's ~ is not supported"),
        ("a." * 40 + "b=1", "more than 32 parts"),
        ("title=a: b: c", "can't be read: mapping values are not allowed here"),
        ("title=!!python/object x", "YAML tags are not allowed"),
        ("title=" + "[" * 40, "nested deeper than 32 levels"),
    ],
)  # fmt: skip
def test_what_can_not_be_meant(argument: str, why: str) -> None:
    assert why in refused(argument)


@pytest.mark.parametrize(
    ("one", "other"),
    [("a.b=1", "overrides.a.b=1"), ("steps=1", "steps=1")],
)
def test_a_key_given_twice(one: str, other: str) -> None:
    assert f"the key is given twice, first by {one}" in refused(one, other)


def test_local_paths_are_relative_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "recipes" / "r.yaml", MINIMAL)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    recipe = load_recipe(
        path,
        ["model={path: ./m, make: ~}", "data.make=~", "data.train=[../a.parquet, /b]", "data.test=[hub/x]",
         "reward.function=./r.py:f", "manifest=m.yaml"],
    )  # fmt: skip
    assert recipe.recipe.model.path == str(tmp_path / "here" / "m")
    assert recipe.recipe.data.train == [str(tmp_path / "a.parquet"), "/b"]
    assert recipe.recipe.data.test == ["hub/x"]
    assert recipe.recipe.reward.function == f"{tmp_path}/here/r.py:f"
    assert recipe.manifest == str(tmp_path / "here" / "m.yaml")


def test_the_trainers_words() -> None:
    assert recipe_key_of("data.train_batch_size") == "data.batch"
    assert recipe_key_of("actor_rollout_ref.actor.optim.clip_grad") == "optimizer.clip"
    assert recipe_key_of("actor_rollout_ref.model.override_config.vocab_size") == "model.config.vocab_size"
    assert recipe_key_of("data.train_batch_size.x") is None
    assert recipe_key_of("data") is None
    assert {"steps", "optimizer.lr", "rollout.validation.top_k", "actor.kl_loss.use", "env"} <= set(
        dotted_keys()
    )
    assert {"data", "trainer", "algorithm"} <= set(sections())


# -- for any argument ----------------------------------------------------------------------------------

PARTS = [*"=.+~[]{},:#'\"\\!&*-|>%@`\n ", "steps", "optimizer", "lr", "1"]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=8).map("".join), st.booleans())
def test_any_value_gives_a_recipe_or_an_error_for_people(value: str, trainers: bool) -> None:
    key = "actor_rollout_ref.x" if trainers else "reward.arguments.x"
    try:
        recipe = load_recipe("quickstart", [f"{key}={value}"]).recipe
    except (RecipeError, UsageError) as error:
        assert key in str(error)
    else:
        assert "x" in recipe.reward.arguments or "actor_rollout_ref.x" in recipe.overrides
