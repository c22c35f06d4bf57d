"""Whatever is in a manifest or a recipe: it loads, or its own error names the file."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.config.kinds import MANIFESTS, RECIPES, Examples, both_kinds

EDITS = st.lists(
    st.tuples(st.integers(0, 90), st.sampled_from(["drop", "insert", "text"]), st.text(max_size=8))
)


def trees(examples: Examples) -> st.SearchStrategy[dict[str, object]]:
    keys = st.sampled_from(examples.words.split()) | st.text(max_size=5)
    values = st.recursive(
        st.text(max_size=10) | st.sampled_from(examples.values),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
        max_leaves=20,
    )
    return st.dictionaries(keys, values, max_size=8)


TREES = {examples.kind.noun: trees(examples) for examples in (MANIFESTS, RECIPES)}


@pytest.mark.nightly
@both_kinds
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_damaged_file_raises_nothing_but_its_own_error(examples: Examples, data: st.DataObject) -> None:
    known = [line for path in examples.good for line in path.read_text(encoding="utf-8").splitlines()]
    lines = data.draw(st.sampled_from(examples.good)).read_text(encoding="utf-8").splitlines()
    for position, edit, text in data.draw(EDITS):
        at = position % (len(lines) + 1)
        if edit == "drop":
            del lines[at : at + 1]
        else:
            lines.insert(at, data.draw(st.sampled_from(known)) if edit == "insert" else text)
    error = refusal(examples, "\n".join(lines))
    assert error is None or "m.yaml" in error


@both_kinds
@pytest.mark.second
@settings(max_examples=75, deadline=None)
@given(data=st.data())
def test_any_tree_of_known_keys_raises_nothing_but_its_own_error(
    examples: Examples, data: st.DataObject
) -> None:
    content = data.draw(TREES[examples.kind.noun])
    error = refusal(examples, json.dumps(content))
    unknown_parent = "extends" in content and f"no bundled {examples.kind.noun}" in (error or "")
    assert error is None or "m.yaml:" in error or unknown_parent


def refusal(examples: Examples, text: str) -> str | None:
    """Load a file with this text; the message of its own kind of error, None if it is valid."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "m.yaml"
        target.write_text(text, encoding="utf-8", errors="replace")
        try:
            assert examples.content(examples.load(str(target)))
        except examples.kind.error as error:
            return str(error)
    return None
