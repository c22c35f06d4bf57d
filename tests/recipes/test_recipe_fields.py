"""Texts into numbers, switches, nulls and texts; and what quotes mean."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from npu_rl.common.yaml_documents.document_kind import MANIFEST
from npu_rl.common.yaml_documents.quoted_text import Quoted
from npu_rl.common.yaml_documents.yaml_reader import read_yaml
from npu_rl.recipes.recipe import recipe_fields
from npu_rl.recipes.recipe.recipe_fields import read_scalar


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


_TYPES = ["Whole", "OrMinusOne", "Number", "Share"]


@pytest.mark.parametrize("field", _TYPES)
@settings(max_examples=40)
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
