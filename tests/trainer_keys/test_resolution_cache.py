"""What was found about keys and values is kept while no file changes, and never longer."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from npu_rl.recipes.trainer_code import answer_cache
from npu_rl.recipes.trainer_code.answer_cache import AnswerCache
from npu_rl.recipes.trainer_code.config_location import ConfigLocation
from npu_rl.recipes.trainer_keys.code_usages import CodeUsages
from npu_rl.recipes.trainer_keys.key_resolver import KeyResolver
from npu_rl.recipes.trainer_keys.resolution import KeyResolution, RefusedValue
from tests.code_trees import answers_kept_at_once, forget_how, lay

MODULE = "verl.trainer.main_ppo"
MAIN = """
import hydra
@hydra.main(config_path="config", config_name="main", version_base=None)
def main(config):
    if config.data.kind not in ("one", "two"):
        raise ValueError(config.data.kind)
"""
FILES = {
    "verl/trainer/main_ppo.py": MAIN,
    "verl/trainer/config/main.yaml": "data:\n  kind: one\n  size: 1\n",
}
GIVEN = {"data.kind": "three", "data.siz": 2}
Answers = tuple[list[KeyResolution], list[RefusedValue | None]]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers_kept_at_once(monkeypatch, tmp_path)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    return lay(tmp_path / "code", FILES)


def answers(code: Path, **more: object) -> Answers:
    given = {**GIVEN, **more}
    cache = AnswerCache(code)
    resolver = KeyResolver(code, ConfigLocation(MODULE, "main"), given, answers=cache)
    found = [resolver.resolve(key) for key in given], [resolver.find_refused(*one) for one in given.items()]
    cache.save()
    return found


def kept(tmp_path: Path) -> Path:
    return next((tmp_path / "cache").rglob("answers.json"))


def test_the_second_time_the_code_is_not_read(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = answers(code)
    assert first[1][0] and first[1][0].names == ("one", "two") and not first[0][1].known
    forget_how(monkeypatch, (KeyResolver, "_resolve"), (KeyResolver, "_find_refused"))
    assert answers(code) == first


def test_only_a_value_that_changed_is_looked_at_again(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(code)
    looked: list[str] = []
    inner = KeyResolver._resolve
    monkeypatch.setattr(KeyResolver, "_resolve", lambda self, key: looked.append(key) or inner(self, key))
    resolutions, refusals = answers(code, **{"data.kind": "two"})
    assert refusals[0] is None and not resolutions[1].known
    assert set(looked) == {"data.kind"}


def test_a_key_that_was_added_does_not_make_the_others_new(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the code accepts and reads does not depend on which keys are set."""
    lay(code, {"verl/reader.py": "x = config.data.siz\n"})
    first = answers(code)
    assert first[1][0] and first[0][1].where == "verl/reader.py:1"
    looked: list[str] = []
    inner = KeyResolver._find_refused
    asked = lambda self, key, value: looked.append(key) or inner(self, key, value)  # noqa: E731
    monkeypatch.setattr(KeyResolver, "_find_refused", asked)
    forget_how(monkeypatch, (CodeUsages, "find"))
    resolutions, refusals = answers(code, **{"data.size": "7"})
    assert (resolutions[:2], refusals[:2]) == first
    assert looked == ["data.size"]


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.write_text(MAIN.replace("two", "three")),
        lambda file: file.write_text(MAIN.replace("two", "3wo")),  # as long as before
        lambda file: os.replace(
            lay(file.parents[3] / "new", {"m.py": MAIN.replace("two", "three")}) / "m.py", file
        ),
        lambda file: lay(file.parents[2], {"verl/new.py": "x = config.data.siz\n"}),
    ],
    ids=["longer", "as long", "replaced", "a new file"],
)
def test_a_change_of_the_code_is_seen(code: Path, change: object, tmp_path: Path) -> None:
    answers(code)
    file = code / "verl/trainer/main_ppo.py"
    before = file.stat()
    change(file)  # type: ignore[operator]
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    now = answers(code)
    kept(tmp_path).unlink()
    assert now == answers(code)


def test_another_configuration_has_answers_of_its_own(code: Path) -> None:
    answers(code)
    elsewhere = KeyResolver(code, ConfigLocation(MODULE, "main"), {"data.kind": "one"})
    own = KeyResolution(True, message="looked at again")
    assert elsewhere._cache.resolution("data.kind", "three", lambda: own) == own


@pytest.mark.parametrize("damage", ["", "[]", "{", '{"state": 1, "answers": []}', "[" * 99999])
def test_damage_is_no_answer(code: Path, tmp_path: Path, damage: str) -> None:
    first = answers(code)
    kept(tmp_path).write_text(damage)
    assert answers(code) == first


@pytest.mark.parametrize(
    "value", [7, [], {}, {"expected": 1}, {"known": True, "expected": {"types": [], "choices": []}, "x": 1}]
)
def test_an_answer_of_another_shape_is_none(code: Path, tmp_path: Path, value: object) -> None:
    first = answers(code)
    document = json.loads(kept(tmp_path).read_text())
    document["answers"] = dict.fromkeys(document["answers"], value)
    kept(tmp_path).write_text(json.dumps(document))
    assert answers(code) == first


def test_nothing_is_kept_of_files_that_just_changed(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_cache, "_SETTLED_NS", 10**15)
    answers(code)
    assert not list((tmp_path / "cache").rglob("answers.json"))


def test_without_a_place_all_is_looked_up(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = answers(code)
    (tmp_path / "file").write_text("no folder can be made below it")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert answers(code) == first
