"""A bundled file is parsed once; what is kept of it is exactly what was parsed, and nothing of other files is kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from npu_rl.common.bundled import bundled_manifests, bundled_recipes
from npu_rl.common.errors import RecipeError
from npu_rl.common.yaml_documents import reading_cache, yaml_reader
from npu_rl.common.yaml_documents.document import Document, Plain
from npu_rl.common.yaml_documents.quoted_text import Quoted
from npu_rl.common.yaml_documents.read_document import read_document
from npu_rl.recipes.recipe.recipe_kind import RECIPE
from npu_rl.stack.manifest.manifest_kind import MANIFEST

RAW = b"""name: mine  # a comment
"": empty key
texts: ["1", 2, ~, 'null', |2
  block
 ]
anchors:
  one: &one {"a": "b", c: []}
  two: *one
none:
"""
RAW = RAW.replace(b", |2\n  block\n ]", b"]\nblock: |\n  text\n  more")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def read(raw: bytes = RAW, *, bundled: bool = True) -> Document:
    return read_document(raw, "a.yaml", RECIPE, bundled)


def forget_how(monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(*_: object) -> None:
        raise AssertionError("parsed again")

    monkeypatch.setattr(yaml_reader, "read_yaml", unable)


def types(value: Plain) -> object:
    """Each value with its type, which equality leaves out: a quoted text equals the plain one."""
    if isinstance(value, dict):
        return {key: types(item) for key, item in value.items()}
    if isinstance(value, list):
        return list(map(types, value))
    return type(value), value


@pytest.mark.parametrize(
    "raw",
    [RAW, *(path.read_bytes() for path in (*bundled_manifests().values(), *bundled_recipes().values()))],
    ids=["all kinds", *bundled_manifests(), *(f"recipe {name}" for name in bundled_recipes())],
)
def test_the_second_time_nothing_is_parsed(raw: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read(raw)
    forget_how(monkeypatch)
    second = read(raw)
    assert types(second.data) == types(first.data)
    assert list(second.lines.items()) == list(first.lines.items())


def test_quotes_are_kept() -> None:
    assert read().data == read().data
    assert [type(item) for item in read().data["texts"]] == [Quoted, str, type(None), Quoted]  # type: ignore[union-attr]


def test_other_bytes_are_parsed() -> None:
    read()
    assert read(RAW + b"more: 1\n").data["more"] == "1"


def test_an_invalid_file_is_refused_each_time() -> None:
    for _ in range(2):
        with pytest.raises(RecipeError, match="can't be read as a recipe"):
            read(b"- a list\n")


def test_nothing_is_kept_of_a_file_of_ones_own(cache: Path) -> None:
    read(b"env: {MY_TOKEN: hunter2}\n", bundled=False)
    assert not list(cache.rglob("*.json"))


def test_nothing_is_kept_of_a_manifest(cache: Path) -> None:
    """What is set up and proven rests on the bytes alone."""
    read_document(RAW, "a.yaml", MANIFEST, bundled=True)
    assert not list(cache.rglob("*.json"))


def kept(cache: Path) -> Path:
    (found,) = cache.rglob("document-*.json")
    return found


@pytest.mark.parametrize(
    "damage",
    ["", "[]", "{", '{"data": {}}', '{"data": {}, "lines": 7, "quoted": []}', '{"quoted": [["x"]]}'],
)
def test_damage_is_parsed_again(cache: Path, damage: str) -> None:
    first = read()
    file = kept(cache)
    file.write_text(f'{{"readers": "{reading_cache._readers()}", "value": {damage or 0}}}')
    assert types(read().data) == types(first.data)
    file.write_text(damage)
    assert types(read().data) == types(first.data)


def test_another_version_parses_again(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """To install a package changes its folder's time."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages)])
    reading_cache._readers.cache_clear()
    read()
    parsed: list[bytes] = []
    inner = yaml_reader.read_yaml

    def counted(raw: bytes, *rest: object) -> Document:
        parsed.append(raw)
        return inner(raw, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(yaml_reader, "read_yaml", counted)
    read()
    assert not parsed
    os.utime(packages, (1, 1))
    reading_cache._readers.cache_clear()
    read()
    assert parsed == [RAW]
    reading_cache._readers.cache_clear()


def test_only_so_many_are_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_cache, "_MOST", 3)
    read(b"name: 0\n")
    (place,) = {path.parent for path in cache.rglob("*.json")}
    (place / "mine.json").write_text("{}")  # no name of npu-rl's
    os.utime(place / "mine.json", (1, 1))
    for number in range(1, 5):
        read(b"name: %d\n" % number)
    assert len(list(place.glob("document-*.json"))) == 3
    assert (place / "mine.json").exists()


def test_without_a_place_it_is_parsed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shared = tmp_path / "shared" / "npu-rl" / "byte-code"
    shared.mkdir(parents=True)
    shared.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    assert types(read().data) == types(read().data)
    assert not list(shared.rglob("*.json"))
