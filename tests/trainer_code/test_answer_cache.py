"""An answer is kept exactly if it can be read again, and only while no file changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npu_rl.recipes.trainer_code import hydra_config
from npu_rl.recipes.trainer_code.answer_cache import AnswerCache
from npu_rl.recipes.trainer_code.config_location import ConfigLocation
from npu_rl.recipes.trainer_code.config_tree import ConfigFault, ConfigTree
from npu_rl.recipes.trainer_code.load_configuration import load_configuration
from tests.code_trees import answers_kept_at_once, forget_how, lay

MODULE = "verl.trainer.main_ppo"
MAIN = """
import hydra
@hydra.main(config_path="FOLDER", config_name="main", version_base=None)
def main(config):
    pass
"""
FILES = {
    "verl/trainer/main_ppo.py": MAIN.replace("FOLDER", "config"),
    "verl/trainer/config/main.yaml": "defaults: [part]\nrate: 1e-6\nnames: [a, null, 2]\nempty: {}\n",
    "verl/trainer/config/part.yaml": "size: 1\nrate: .nan\n",
    "vllm/envs.py": "import os\nWORKERS = int(os.environ.get('VLLM_WORKERS', '1'))\n",
}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers_kept_at_once(monkeypatch, tmp_path)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    return lay(tmp_path / "code", FILES)


def ask(code: Path, found: Any) -> tuple[Any, bool]:
    """The answer to one question, and whether it had to be looked for."""
    looked: list[Any] = []

    def find() -> Any:
        looked.append(found)
        return found

    answers = AnswerCache(code)
    answer = answers.answer(["question"], find, lambda one: one, lambda kept: kept)
    answers.save()
    return answer, bool(looked)


@pytest.mark.parametrize("answer", [None, True, 1, 1.5, "text", "\udcff", ["a", {"b": None}], {}])
def test_what_json_can_hold_is_kept(code: Path, answer: object) -> None:
    assert ask(code, answer) == (answer, True)
    assert ask(code, "another") == (answer, False)


@pytest.mark.parametrize("answer", [(1, 2), {1: 2}, float("nan"), b"bytes", {"a": {3}}])
def test_what_would_be_read_as_something_else_is_not(code: Path, answer: object) -> None:
    ask(code, answer)
    assert ask(code, "another") == ("another", True)


def compose(code: Path) -> ConfigTree:
    answers = AnswerCache(code)
    found = load_configuration(code, ConfigLocation(MODULE, "main"), answers)
    answers.save()
    return found


def test_the_configuration_is_composed_once(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compose(code)
    assert first.entries["size"].where == "verl/trainer/config/part.yaml:1"
    assert list(map(type, first.entries["names"].value)) == [str, type(None), int]
    forget_how(monkeypatch, (hydra_config, "compose_files"))
    again = compose(code)
    assert again == first and list(again.entries) == list(first.entries)


def test_a_configuration_outside_the_code_is_composed_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looks whether a file there has changed."""
    code = lay(tmp_path / "code", {"verl/trainer/main_ppo.py": MAIN.replace("FOLDER", "../../../elsewhere")})
    lay(tmp_path / "elsewhere", {"main.yaml": "size: 1\n"})
    assert compose(code).entries["size"].value == 1
    lay(tmp_path / "elsewhere", {"main.yaml": "size: 2\n"})
    assert compose(code).entries["size"].value == 2


def test_a_fault_is_found_each_time(code: Path) -> None:
    (code / "verl/trainer/config/part.yaml").unlink()
    for _ in range(2):
        with pytest.raises(ConfigFault, match=r"missing configuration part\.yaml"):
            compose(code)
    lay(code, {"verl/trainer/config/part.yaml": "size: 3\n"})
    assert compose(code).entries["size"].value == 3
