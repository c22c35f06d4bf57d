"""What a stranger's recipe or command names is read in linear time, and never ends the reading."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_rl.training.record.named_paths import named_paths


@given(st.text(min_size=1).map(lambda text: f"/a/{text}"))
def test_a_path_is_found_as_a_value_and_quoted_in_a_word(path: str) -> None:
    quoted = path.replace("\\", "\\\\").replace("'", "\\'")
    usable = "\0" not in path
    for document in ({"model": {"path": path}}, ["python", f"a.b=['/x',\n'{quoted}']"], [f"c={path}"]):
        assert (path in named_paths(json.dumps(document).encode())) is usable


@given(st.binary())
def test_any_bytes_are_read(content: bytes) -> None:
    assert all(os.fsencode(path) for path in named_paths(content))


@pytest.mark.parametrize("text", ["'" + "\\'" * 50_000, "'" + "\\'" * 50_000 + "\\", "'\"" * 50_000])
def test_quotes_that_never_end_are_read_once(text: str) -> None:
    named_paths(json.dumps([text]).encode())
