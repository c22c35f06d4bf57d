"""Every bad recipe in bad/ is refused, with the message its first lines expect."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from npu_rl.common.errors import RecipeError
from npu_rl.common.yaml_documents.document_kind import InvalidRecipe
from npu_rl.recipes.recipe.load_recipe import load_recipe
from tests.config.documents import ids, write
from tests.recipes.examples import BAD, MINIMAL


@pytest.mark.parametrize("path", BAD, ids=ids)
def test_is_refused_with_the_expected_message(path: Path) -> None:
    expected = re.findall(r"^# expect: (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert expected, "the first line says what to expect"
    with pytest.raises(RecipeError) as caught:
        load_recipe(str(path))
    message = "\n".join([str(caught.value), *map(str, getattr(caught.value, "problems", ()))])
    for pattern in expected:
        assert re.search(pattern, message), f"{pattern!r} is not in:\n{message}"
    assert f"{path}:" in message, "the message names file and line"
    assert not re.search("valid manifest|as a manifest|The manifest", message)


def test_all_faults_are_reported_at_once_in_order_of_lines(tmp_path: Path) -> None:
    text = MINIMAL.replace("device: cpu", "device: tpu").replace("name: demo", "name: -x")
    path = write(tmp_path / "r.yaml", text.replace("lr: 1e-3", "lr: []") + "colour: red\n")
    with pytest.raises(InvalidRecipe) as caught:
        load_recipe(path, ["rollout.responses=0", "steps=x"])
    found = [(problem.line, problem.path) for problem in caught.value.problems]
    assert found == [
        (2, ("name",)),
        (5, ("device",)),
        (11, ("optimizer", "lr")),
        (13, ("colour",)),
        (0, ("rollout", "responses")),
        (0, ("steps",)),
    ]
    assert caught.value.exit_code == 1
    assert f"{path} is not a valid recipe: 6 errors" in str(caught.value)


@pytest.mark.parametrize("name", ["", "no-such-recipe", "\0", "\udc80", "x" * 5000])
def test_an_unknown_name_lists_what_is_bundled(name: str) -> None:
    with pytest.raises(RecipeError, match="Unknown bundled recipe") as caught:
        load_recipe(name)
    assert "`npu-rl recipes list` prints the names" in str(caught.value) and caught.value.exit_code == 2
