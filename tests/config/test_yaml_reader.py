"""Reading YAML: texts and lines out of good files; bounded time and memory for hostile ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.common.errors import ManifestError
from npu_rl.common.yaml_documents.document_kind import MANIFEST
from npu_rl.common.yaml_documents.file_digests import SIZE_LIMIT
from npu_rl.common.yaml_documents.yaml_reader import DEPTH_LIMIT, NODE_LIMIT, read_yaml


def refused(raw: bytes) -> str:
    with pytest.raises(ManifestError) as caught:
        read_yaml(raw, "m.yaml", MANIFEST)
    return str(caught.value)


def test_scalars_stay_text() -> None:
    raw = b"a: 3.10\nb: on\nc: 0x10\nd: 2025-01-01\ne: 1_000\nf: '~'\ng: \"\"\nh: 12:30:45\n"
    assert read_yaml(raw, "m.yaml", MANIFEST).data == {
        "a": "3.10", "b": "on", "c": "0x10", "d": "2025-01-01",
        "e": "1_000", "f": "~", "g": "", "h": "12:30:45",
    }  # fmt: skip


@pytest.mark.parametrize("null", ["", "~", "null", "Null", "NULL"])
def test_a_plain_null_is_none(null: str) -> None:
    assert read_yaml(f"a: {null}\nb: [x, {null or '~'}]\n".encode(), "m", MANIFEST).data == {
        "a": None,
        "b": ["x", None],
    }


def test_every_key_and_item_has_its_line() -> None:
    raw = b"# top\na:\n  b: 1\n  c:\n    - x\n    - {d: y,\n       e: z}\n"
    assert read_yaml(raw, "m", MANIFEST).lines == {
        (): 2,
        ("a",): 2,
        ("a", "b"): 3,
        ("a", "c"): 4,
        ("a", "c", 0): 5,
        ("a", "c", 1): 6,
        ("a", "c", 1, "d"): 6,
        ("a", "c", 1, "e"): 7,
    }


def test_aliases_are_copied_out() -> None:
    data = read_yaml(b"a: &x {b: [1]}\nc: *x\n", "m", MANIFEST).data
    assert data == {"a": {"b": ["1"]}, "c": {"b": ["1"]}}
    assert data["a"] is not data["c"]


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        (b"a: &x {b: 1}\nc:\n  d: 2\n  <<: *x\n", 4),
        (b"a: 1\nb:\n  c: 1\n  c: 2\n", 4),
        (b"a: 1\nb: [*x]\n", 2),
        (b"a: &x 1\nb: 2\n*x : 3\n", 3),
        (b"a: &x 1\n\nb: &x 2\n", 3),
        (b"a:\n  b: &x\n    - *x\n", 2),
        (b"a: 1\nb: !!int 2\n", 2),
        (b"a: 1\n? [b]\n: 2\n", 2),
        (b"a: 1\n: 2\n", 2),
        (b"a: 1\n---\nb: 2\n", 2),
        (b'a: 1\nb: "\\x01"\n', 2),
        (b"a: 1\nb: [1\nc: 2\n", 3),
    ],
    ids=[
        "merge",
        "twice",
        "alias",
        "alias as key",
        "anchor",
        "cycle",
        "tag",
        "key",
        "empty",
        "two",
        "control",
        "[",
    ],
)
def test_a_refusal_names_the_line(raw: bytes, line: int) -> None:
    assert f"m.yaml:{line}\n" in refused(raw)


def test_a_byte_order_mark_is_dropped() -> None:
    assert read_yaml(b"\xef\xbb\xbfa: b\n", "m", MANIFEST).data == {"a": "b"}


def test_other_encodings_are_told() -> None:
    assert "UTF-16" in refused("a: b\n".encode("utf-16"))
    message = refused(b"a: b\nc: \xff\n")
    assert "not UTF-8" in message and "m.yaml:2" in message


def test_size_is_checked_first() -> None:
    fits = b"a: b #" + b"x" * (SIZE_LIMIT - 6)
    assert read_yaml(fits, "m", MANIFEST).data == {"a": "b"}
    assert "larger than 256 KB" in refused(fits + b"x")
    assert "larger than 256 KB" in refused(b"\xff" * (SIZE_LIMIT + 1))


def test_depth() -> None:
    inside = DEPTH_LIMIT - 2  # the mapping and the text in the middle are levels too
    assert read_yaml(b"a: " + b"[" * inside + b"x" + b"]" * inside, "m", MANIFEST).data
    assert "deeper than 32" in refused(b"a: " + b"[" * (inside + 1) + b"x" + b"]" * (inside + 1))


def test_number_of_values() -> None:
    # The mapping, its key and the list are values too.
    assert read_yaml(b"a: [" + b"x," * (NODE_LIMIT - 3) + b"]", "m", MANIFEST).data
    assert "more than 20000" in refused(b"a: [" + b"x," * (NODE_LIMIT - 2) + b"]")


@pytest.mark.parametrize(
    "unit", ["[", "{", "- ", "? ", "{a: ", "'", '"', "!", "%", "&a ", "a: ", ": ", "\t", "[a,", "\n"]
)
def test_a_full_file_of_one_token_is_refused_quickly(unit: str) -> None:
    raw = (unit * (SIZE_LIMIT // len(unit))).encode()
    assert "m.yaml:" in refused(raw)


@given(st.binary(max_size=300))
def test_any_bytes_give_a_mapping_or_a_manifest_error(raw: bytes) -> None:
    try:
        document = read_yaml(raw, "m.yaml", MANIFEST)
    except ManifestError as error:
        assert error.where is not None and error.where.startswith("m.yaml:")
    else:
        assert isinstance(document.data, dict)


PIECES = [
    *"a\n[]{},:'\"#\\~\t\x85\ufeffé\r",
    *("b: ", "- ", "  ", "? ", "&x ", "*x", "!t ", "|\n", ">\n", "<<", "\\x00", "\\U"),
    *("---\n", "...\n", "%YAML 1.1\n", "%TAG ! !x\n"),
]


@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_any_mix_of_yaml_tokens_gives_a_mapping_or_a_manifest_error(pieces: list[str]) -> None:
    try:
        document = read_yaml("".join(pieces).encode(), "m.yaml", MANIFEST)
    except ManifestError as error:
        assert error.where is not None and error.where.startswith("m.yaml:")
    else:
        assert all(line >= 1 for line in document.lines.values())
