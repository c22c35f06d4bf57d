"""The committed JSON Schema is the models', and agrees with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from npu_rl.common.bundled import data_root
from npu_rl.common.yaml_documents.document_kind import MANIFEST
from npu_rl.common.yaml_documents.json_schema import export_schema
from npu_rl.common.yaml_documents.yaml_reader import read_yaml
from npu_rl.stack.manifest.schema import Manifest
from tests.config.data_edits import at, changed, places, without
from tests.config.documents import ids, is_structural
from tests.manifest.examples import BAD, GOOD

SCHEMA = export_schema(Manifest, "npu-rl manifest", appends=True)
VALIDATOR = Draft202012Validator(json.loads(SCHEMA))


@cache
def good(path: Path) -> Any:
    """What one of them says, which nobody may change."""
    return read_yaml(path.read_bytes(), "m", MANIFEST).data


WHOLE = [path for path in GOOD if "extends" not in good(path)]
OPEN = ("components", "env", "entry_points", "submodules")


def test_the_committed_file_is_the_export() -> None:
    committed = (data_root() / "manifests" / "manifest.schema.json").read_text(encoding="utf-8")
    again = "write it again: .ci/regenerate manifests/manifest.schema.json"
    assert committed == SCHEMA, again


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(json.loads(SCHEMA))
    assert json.dumps(json.loads(SCHEMA), indent=2, sort_keys=True) + "\n" == SCHEMA


@pytest.mark.parametrize("path", GOOD, ids=ids)
def test_good_examples_pass_as_text_and_as_an_editor_reads_them(path: Path) -> None:
    raw = path.read_bytes()
    assert list(VALIDATOR.iter_errors(read_yaml(raw, "m", MANIFEST).data)) == []
    assert list(VALIDATOR.iter_errors(yaml.safe_load(raw))) == []


@pytest.mark.parametrize("path", [path for path in BAD if is_structural(path)], ids=ids)
def test_structural_faults_are_seen_in_the_editor(path: Path) -> None:
    assert not VALIDATOR.is_valid(read_yaml(path.read_bytes(), "m", MANIFEST).data)


def accepted(data: object) -> bool:
    try:
        Manifest.model_validate(data)
    except ValidationError:
        return False
    return True


def mutations(data: Any) -> Iterator[tuple[str, Any]]:
    """Every key deleted, every value of another kind, an unknown key in every closed mapping."""
    for path in list(places(data)):
        value = at(data, path)
        if isinstance(value, dict) and not set(path[-1:]) & set(OPEN) and path[-2:-1] != ("entry_points",):
            yield f"unknown key in {path}", changed(data, (*path, "surplus"), "x")
        if not path:
            continue
        if path[:-1] != ("components",):  # a patch may come from it, which JSON Schema can't follow
            yield f"without {path}", without(data, path)
        for other in ([], {}, ["x"], {"x": "y"}, "?"):
            if type(other) is not type(value):
                yield f"{path} as {other}", changed(data, path, other)


def takes_nothing(data: Any) -> bool:
    components = data.get("components")
    entries = components.values() if isinstance(components, dict) else ()
    return any(isinstance(c, dict) and not c.get("take") and c.get("checkout") != "full" for c in entries)


@pytest.mark.nightly
@pytest.mark.parametrize("path", WHOLE, ids=ids)
def test_it_agrees_with_the_models_on_every_mutation(path: Path) -> None:
    count = 0
    for what, data in mutations(good(path)):
        count += 1
        if takes_nothing(data) and "'from':" in str(data):
            continue  # whether patches come from that component JSON Schema can't follow
        assert VALIDATOR.is_valid(data) == accepted(data), what
    assert count > 50


NUMBERS = [1, 0, 3.1, 12, True, False]


@pytest.mark.parametrize("path", WHOLE, ids=ids)
def test_it_accepts_numbers_where_the_loader_accepts_their_text(path: Path) -> None:
    text = good(path)
    count = 0
    for place in places(text):
        if not isinstance(at(text, place), str):
            continue
        for number in NUMBERS:
            spelled = str(number).lower() if isinstance(number, bool) else str(number)
            if accepted(changed(text, place, spelled)):
                count += 1
                assert VALIDATOR.is_valid(changed(text, place, number)), (place, number)
    assert count > 0


WORDS = "refs/heads/x . a/b ../a ./a 1 true https://h/x git@h:x file:///x a==1 A1 m:f a.b 1.0rc1 v1 ~/x"
SCALARS = st.text(max_size=12) | st.sampled_from(
    [*WORDS.split(), "a" * 40, "a" * 40 + "\n", " 1", "-a", ".git", "a/.git/b", "é"]
)


@pytest.mark.nightly
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_it_accepts_whatever_the_models_accept(data: st.DataObject) -> None:
    text = good(data.draw(st.sampled_from(WHOLE)))
    leaves = [place for place in places(text) if isinstance(at(text, place), str)]
    for _ in range(data.draw(st.integers(1, 3))):
        text = changed(text, data.draw(st.sampled_from(leaves)), data.draw(SCALARS))
    assert VALIDATOR.is_valid(text) or not accepted(text)


def test_a_child_may_leave_out_and_remove() -> None:
    assert VALIDATOR.is_valid(
        {"extends": "base", "components": {"a": None, "b": {"ref": None, "dist": None}}}
    )
    assert VALIDATOR.is_valid({"extends": "./base.yaml", "env": {"A": None}, "host": {"cann": None}})
    assert not VALIDATOR.is_valid({"extends": None})
    assert not VALIDATOR.is_valid({"extends": "base", "compnents": {}})
    assert not VALIDATOR.is_valid({"extends": "base", "components": {"a": {"take": [{"from": "x"}]}}})
    assert not VALIDATOR.is_valid({"extends": "base", "requirements": [None]})
