"""A resolved recipe written as YAML is the same recipe."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from npu_rl.common.masking import masked_data
from npu_rl.common.yaml_documents.document_kind import MANIFEST
from npu_rl.common.yaml_documents.quoted_text import Quoted
from npu_rl.common.yaml_documents.yaml_reader import read_yaml
from npu_rl.recipes.recipe.dump_recipe import recipe_yaml
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe, load_recipe
from npu_rl.recipes.recipe.recipe_fields import read_scalar
from tests.config.documents import ids, write
from tests.recipes.examples import GOOD, open_mapping


def again(loaded: LoadedRecipe) -> LoadedRecipe:
    """What is read back from the text, in a folder beside the recipe's own."""
    with tempfile.TemporaryDirectory() as folder:
        return load_recipe(write(Path(folder) / "resolved.yaml", recipe_yaml(loaded)))


@pytest.mark.parametrize("path", GOOD, ids=ids)
def test_it_reads_back_as_the_same_recipe(path: Path) -> None:
    loaded = load_recipe(
        str(path), ["env.MORE=1", f"{open_mapping(path)}.x='1'", "a.b=[x, {y: '2'}, [], {}]"]
    )
    copy = again(loaded)
    assert copy.digest == loaded.digest
    assert copy.recipe == loaded.recipe.model_copy(update={"extends": None})
    assert "extends" not in copy.data


TEXTS = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"), max_size=10
)
PLAIN = st.sampled_from(
    ["1", "-1", "1e-6", "true", "a:b", "a", "-", "--", "...", "a:", "x=1", "%a", "@a", "1:2"]
)


@settings(max_examples=100, deadline=None)
@example(values={"<<": "1"})
@example(values={"PASS": "1"})
@given(st.dictionaries(TEXTS.filter(str.strip), PLAIN | TEXTS | TEXTS.map(Quoted), min_size=1, max_size=4))
def test_any_text_reads_back(values: dict[str, str]) -> None:
    assume(masked_data(values) == values)  # PASS: 1 is masked
    loaded = load_recipe("quickstart")
    data = {**loaded.data, "model": {"make": "tiny-deepseek-v3", "config": values}}
    text = recipe_yaml(LoadedRecipe(**{**loaded.__dict__, "data": data}))
    found = read_yaml(text.encode(), "r", MANIFEST).data["model"]
    assert isinstance(found, dict) and isinstance(found["config"], dict)
    assert found["config"] == values
    for key, value in values.items():
        if isinstance(value, Quoted) or value in ("1", "-1", "1e-6", "true"):
            assert read_scalar(found["config"][key]) == read_scalar(value)
