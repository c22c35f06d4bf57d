"""What a reader takes, and which values certainly are none of it."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.common.yaml_documents.suggest import alike, nearest
from npu_rl.recipes.trainer_code.source_index import SourceIndex
from npu_rl.recipes.trainer_code.value_types import ANY, ExpectedType, default_type, field_type
from tests.code_trees import lay
from tests.support import present

ALIASES = """
from typing import Literal, Optional, Union
from .other import Imported, Unknown
import pkg.other as other
Mode = Literal["a", "b"]
class C:
    x: {annotation} = None
"""


def expected(tmp_path: Path, annotation: str) -> ExpectedType:
    files = {"pkg/m.py": ALIASES.format(annotation=annotation), "pkg/other.py": 'Imported = "int"\n'}
    sources = SourceIndex(lay(tmp_path, files))
    return field_type(present(sources.fields("pkg.m.C"))["x"], sources)


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        ("int", "many", "must be a number, not 'many'"),
        ("int", True, "must be a number, not true"),
        ("int", [1], "must be a number, not a list"),
        ("Optional[float]", "x", "must be a number, not 'x'"),
        ("float | None", {"a": 1}, "must be a number, not a mapping"),
        ("bool", "yes", "must be true or false, not 'yes'"),
        ("bool", 7, "must be true or false, not 7"),
        ("Mode", "c", "must be one of a, b, not 'c'"),
        ("Optional[Literal['auto', 'fp8']]", "fp9", "must be one of auto, fp8, not 'fp9'"),
        ("Imported", "x", "must be a number, not 'x'"),
        ("'int'", "x", "must be a number, not 'x'"),
        ("other.Imported", "x", "must be a number, not 'x'"),
        ("dict[str, int]", 1, "must be a mapping, not 1"),
        ("Union[int, list[int]]", "x", "must be a number or a list, not 'x'"),
    ],
)
def test_a_value_that_is_certainly_wrong(
    tmp_path: Path, annotation: str, value: object, message: str
) -> None:
    assert expected(tmp_path, annotation).mismatch(value) == message


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        ("int", 1.5),
        ("int", None),
        ("int", "${other.key}"),
        ("bool", 1),
        ("str", 7),
        ("str", ["a"]),
        ("Mode", "b"),
        ("Union[str, Mode]", "anything"),
        ("Unknown", "anything"),
        ("Optional[Unknown]", 1),
        ("Union[int, Unknown]", "x"),
        ("not_imported", "x"),
    ],
)
def test_a_value_that_may_be_right(tmp_path: Path, annotation: str, value: object) -> None:
    assert expected(tmp_path, annotation).mismatch(value) is None


@given(st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers()))
def test_a_default_never_contradicts_itself(value: object) -> None:
    assert default_type(value).mismatch(value) is None
    assert ANY.mismatch(value) is None


def test_fields_of_a_class_that_is_imported_on(tmp_path: Path) -> None:
    files = {
        "pkg/__init__.py": "from .deep import *\n",
        "pkg/deep.py": "from pkg.base import Base as B\nclass C(B):\n    y: int = 1\n    z: ClassVar[int] = 0\n",
        "pkg/base.py": "try:\n    import x\nexcept ImportError:\n    pass\nclass Base:\n    x: int\n    y: str\n",
    }
    fields = present(SourceIndex(lay(tmp_path, files)).fields("pkg.C"))
    places = {name: field.where for name, field in fields.items()}
    assert places == {"x": "pkg/base.py:6", "y": "pkg/deep.py:3"}


def test_modules_that_import_in_a_circle_or_do_not_parse(tmp_path: Path) -> None:
    code = lay(tmp_path, {"a.py": "from b import C\n", "b.py": "from a import C\n", "c.py": "def ("})
    assert SourceIndex(code).fields("a.C") is None
    assert SourceIndex(code).fields("c.C") is None
    assert SourceIndex(code).fields("nowhere.C") is None


def test_upstreams_own_warnings_are_not_shown(tmp_path: Path) -> None:
    code = lay(tmp_path, {"a.py": 'class C:\n    x: int = 1\n    y = "\\d"\n'})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert set(SourceIndex(code).fields("a.C") or ()) == {"x"}


@pytest.mark.parametrize("name", ["num-layers", "NumLayers", "layers_num", "num_layer"])
def test_the_nearest_name(name: str) -> None:
    assert nearest(name, ["hidden_size", "num_layers", "num_heads"]) == "num_layers"


def test_no_name_is_near() -> None:
    assert nearest("attention", ["hidden_size", "num_layers"]) is None


@given(st.lists(st.text("ab_", min_size=1, max_size=6), min_size=1))
def test_a_known_name_is_its_own_nearest_spelling(names: list[str]) -> None:
    assert present(nearest(names[0], names)).replace("_", "") == names[0].replace("_", "")


def test_two_spellings_of_one_thing() -> None:
    assert alike("multi_latent_attention", "multi_head_latent_attention")
    assert not alike("num_layers", "num_moe_layers"), "two words in common say too little"
    assert not alike("a_b_c", "a_b_c") and not alike("a_b_c", "a_b_c_d_e")
