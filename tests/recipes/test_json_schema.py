"""The committed JSON Schema is that of the recipe's models, and agrees with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from npu_rl.common.bundled import bundled_recipes
from npu_rl.common.yaml_documents.document_kind import MANIFEST
from npu_rl.common.yaml_documents.json_schema import export_schema
from npu_rl.common.yaml_documents.yaml_reader import read_yaml
from npu_rl.recipes.recipe.schema import Recipe
from tests.config.data_edits import at, changed, places, without
from tests.config.documents import ids, is_structural
from tests.recipes.examples import BAD, GOOD

SCHEMA = export_schema(Recipe, "npu-rl recipe")
VALIDATOR = Draft202012Validator(json.loads(SCHEMA))
EXAMPLES = [*GOOD, *bundled_recipes().values()]
WHOLE = [path for path in EXAMPLES if "extends" not in read_yaml(path.read_bytes(), "r", MANIFEST).data]
# Mappings with keys of a person's own, and what lies in them.
OPEN = {"config", "arguments", "engine_arguments", "transformer", "env", "adaptations", "overrides"}


@pytest.mark.parametrize("path", EXAMPLES, ids=ids)
def test_good_examples_pass_as_text_and_as_an_editor_reads_them(path: Path) -> None:
    raw = path.read_bytes()
    assert list(VALIDATOR.iter_errors(read_yaml(raw, "r", MANIFEST).data)) == []
    assert list(VALIDATOR.iter_errors(yaml.safe_load(raw))) == []


@pytest.mark.parametrize("path", [path for path in BAD if is_structural(path)], ids=ids)
def test_structural_faults_are_seen_in_the_editor(path: Path) -> None:
    assert not VALIDATOR.is_valid(read_yaml(path.read_bytes(), "r", MANIFEST).data)


def accepted(data: object) -> bool:
    try:
        Recipe.model_validate(data)
    except ValidationError:
        return False
    return True


TEXTS = {path: read_yaml(path.read_bytes(), "r", MANIFEST).data for path in WHOLE}


def shape(place: tuple[Any, ...]) -> tuple[Any, ...]:
    opened = next((at for at, key in enumerate(place) if key in OPEN), len(place))
    return (*place[: opened + 1], *("*" for _ in place[opened + 1 :]))


def places_by_recipe() -> dict[Path, list[tuple[Any, ...]]]:
    """The places of each recipe, without those that an earlier one has with a value of the same kind."""
    seen: set[tuple[Any, ...]] = set()
    new: dict[Path, list[tuple[Any, ...]]] = {}
    for recipe in WHOLE:
        for place in places(TEXTS[recipe]):
            kind = (shape(place), type(at(TEXTS[recipe], place)))
            if kind not in seen:
                seen.add(kind)
                new.setdefault(recipe, []).append(place)
    return new


NEW = places_by_recipe()
OTHER: list[Any] = [[], {}, ["x"], {"x": "y"}]
NUMBERS = [1, 0, -1, 3.5, 1e-6, True]


@pytest.mark.second
@pytest.mark.parametrize("path", NEW, ids=ids)
def test_it_knows_every_key_and_its_kind(path: Path) -> None:
    """It refuses unknown keys and values of another kind, and takes what the loader takes, as text or number."""
    assert sum(map(len, NEW.values())) > 200
    text = TEXTS[path]
    for place in NEW[path]:
        value = at(text, place)
        if isinstance(value, dict) and not set(place) & OPEN:
            data = changed(text, (*place, "surplus"), "x")
            assert VALIDATOR.is_valid(data) == accepted(data), place
        if place:
            assert VALIDATOR.is_valid(without(text, place)) or not accepted(without(text, place)), place
        if not isinstance(value, str):
            continue
        for other in OTHER:
            data = changed(text, place, other)
            assert VALIDATOR.is_valid(data) == accepted(data), (place, other)
        for number in NUMBERS:
            spelled = str(number).lower() if isinstance(number, bool) else str(number)
            if accepted(changed(text, place, spelled)):
                assert VALIDATOR.is_valid(changed(text, place, number)), (place, number)
