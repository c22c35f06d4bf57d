"""Texts into numbers, switches, nulls and texts; and what quotes mean."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from npu_rl.common.yaml_documents.document_kind import MANIFEST
from npu_rl.common.yaml_documents.quoted_text import Quoted
from npu_rl.common.yaml_documents.yaml_reader import NotYaml, read_value, read_yaml
from npu_rl.recipes.recipe import recipe_fields
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.recipes.recipe.recipe_fields import read_scalar
from tests.config.documents import write
from tests.recipes.examples import MINIMAL


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("1", 1), ("-1", -1), ("+1", 1), ("1_000", 1000), ("007", 7), ("1.", 1.0), (".5", 0.5), ("1e-6", 1e-6),
        ("1E5", 1e5), ("1.5e+3", 1500.0), ("true", True), ("FALSE", False), ("no", "no"), ("1__0", "1__0"),
        ("_1", "_1"), ("1_", "1_"), ("0x10", "0x10"), (".", "."), ("e5", "e5"), ("1e", "1e"), (".inf", ".inf"),
        ("1e999", "1e999"), ("9" * 5000, "9" * 5000), ("1.2.3", "1.2.3"), ("2025-01-01", "2025-01-01"),
        ("'1'", "1"), ('"true"', "true"), ("'1e-6'", "1e-6"), ("'null'", None), ('"~"', None), ("'NULL'", None),
        ("[1, '1', {a: 2.0, 'b': no}]", [1, "1", {"a": 2.0, "b": "no"}]), ("[]", []), ("{}", {}),
        ("''", ""), ("|-\n  1", "1"), (">-\n  a\n  b", "a b"),
    ],
)  # fmt: skip
def test_what_a_scalar_means(written: str, meant: object) -> None:
    data = read_yaml(f"x: {written}\n".encode(), "r", MANIFEST).data["x"]
    value = read_scalar(data)
    assert value == meant and type(value) is type(meant)
    assert json.dumps(value) == json.dumps(meant)


@given(st.text(max_size=12) | st.from_regex(r"[+-]?[0-9_.eE+-]{1,12}", fullmatch=True))
def test_a_scalar_is_never_a_fault(text: str) -> None:
    value = read_scalar(text)
    assert value is None or isinstance(value, (bool, int, str)) or math.isfinite(value)
    assert read_scalar(Quoted(text)) == (None if text.lower() in ("null", "~") else text)


_TYPES = ["Whole", "Positive", "Count", "OrAll", "OrMinusOne", "Number", "NotNegative", "AboveZero", "Share"]


@pytest.mark.parametrize("field", _TYPES)
@given(st.text(max_size=12) | st.from_regex(r"[+-]?[0-9_.eE+-]{1,12}", fullmatch=True) | st.floats())
def test_a_number_is_one_or_is_refused_in_plain_words(field: str, value: Any) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(getattr(recipe_fields, field))
    try:
        number = adapter.validate_python(value)
    except ValidationError as error:
        assert "must be" in str(error)
    else:
        assert type(number) is (float if field in ("Number", "NotNegative", "AboveZero", "Share") else int)
        assert math.isfinite(number)


def test_quotes_are_remembered_and_keys_are_plain() -> None:
    data = read_yaml(b"a: 1\nb: '1'\nc: \"1\"\nd: |\n  1\n'e': [x, 'x']\n", "r", MANIFEST).data
    assert data == {"a": "1", "b": "1", "c": "1", "d": "1\n", "e": ["x", "x"]}
    assert [type(value) for value in (data["a"], data["b"], data["c"], data["d"])] == [str, *[Quoted] * 3]
    assert [type(item) for item in data["e"] or []] == [str, Quoted]
    assert all(type(key) is str for key in data)


def test_a_recipe_may_quote_anything(tmp_path: Path) -> None:
    quoted = re.sub(r"(: |\[)([A-Za-z0-9./_-]+)(?=[\n,}\]])", r'\1"\2"', MINIMAL)
    assert quoted.count('"') == 2 * 13
    ours = load_recipe(write(tmp_path / "r.yaml", quoted))
    assert ours.digest == load_recipe(write(tmp_path / "minimal.yaml", MINIMAL)).digest


@pytest.mark.parametrize("text", ["#", "a: b: c", "[", "'", "*a", "a\n---\nb", "\0", "!x y", "%"])
def test_what_is_no_value(text: str) -> None:
    with pytest.raises(NotYaml) as caught:
        read_value(text)
    assert caught.value.line >= 1 and caught.value.why


@given(st.text(max_size=20))
def test_any_text_is_a_value_or_not_yaml(text: str) -> None:
    try:
        value, places, _ = read_value(text)
    except NotYaml as error:
        assert error.why
    else:
        assert () in places and (value is None or isinstance(value, (str, list, dict)))
