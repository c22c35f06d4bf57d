"""A recipe's manifest is read again after every change of its files, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.common.bundled import bundled_manifests
from npu_rl.common.errors import ManifestError
from npu_rl.stack.manifest import load_manifest as loading
from npu_rl.stack.manifest.load_manifest import load_manifest
from npu_rl.stack.manifest.manifest_facts import manifest_facts

PIN = "1" * 40
PARENT = f"""schema: 1
name: parent
title: A parent
device: npu
components:
  one:
    sources: [{{git: https://example.org/one.git}}]
    ref: {PIN}
    patches: [./fix.patch, {{path: inner.patch, from: one}}]
    take: [{{from: a, to: a}}]
env: {{A: "1"}}
tree: {{patches: [verl/0.5.0]}}
"""
CHILD = "schema: 1\nextends: ./parent.yaml\nname: child\ntitle: A child\nenv: {B: two}\n"


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def child(tmp_path: Path) -> Path:
    (tmp_path / "parent.yaml").write_text(PARENT)
    path = tmp_path / "child.yaml"
    path.write_text(CHILD)
    return path


def forget_how(monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(*_: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(loading, "load_manifest", unable)


@pytest.mark.parametrize("name", bundled_manifests())
def test_the_facts_of_a_bundled_manifest(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_manifest(name)
    manifest = loaded.manifest
    first = manifest_facts(name)
    assert (first.name, first.env, Path(first.path)) == (manifest.name, manifest.env, loaded.path)
    pins = {part.ref for part in manifest.components.values() if part.ref}
    assert pins <= {*first.pins} and all("==" in pin for pin in {*first.pins} - pins)
    entries = [entry for part in manifest.components.values() for entry in part.patches]
    entries += manifest.tree.patches
    assert first.patch_files() == [loaded.locate(entry.path) for entry in entries if not entry.from_]
    forget_how(monkeypatch)
    assert manifest_facts(name) == first


def test_the_facts_of_ones_own(child: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = manifest_facts(str(child))
    assert (first.name, first.env, first.pins) == ("child", {"A": "1", "B": "two"}, (PIN,))
    assert first.patches == ("./fix.patch", "verl/0.5.0")
    assert first.patch_files()[0] == child.parent / "fix.patch"
    forget_how(monkeypatch)
    monkeypatch.chdir(child.parent)
    assert manifest_facts("./child.yaml") == first


@pytest.mark.parametrize("name", ["child.yaml", "parent.yaml"])
def test_a_change_is_seen(child: Path, name: str) -> None:
    first = manifest_facts(str(child))
    file = child.with_name(name)
    file.write_text(file.read_text().replace("A: ", "C: ").replace("B: ", "D: "))
    assert manifest_facts(str(child)).env.keys() != first.env.keys()
    file.write_text("schema: 2\n")
    with pytest.raises(ManifestError):
        manifest_facts(str(child))
    file.unlink()
    with pytest.raises(ManifestError, match="can't be read"):
        manifest_facts(str(child))


@pytest.mark.parametrize("name", ["nonesuch", "./nonesuch.yaml", "/nonexistent/nonesuch.yaml"])
def test_a_missing_manifest_is_told_as_ever(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ManifestError) as ours:
        manifest_facts(name)
    with pytest.raises(ManifestError) as loaded:
        load_manifest(name)
    assert str(ours.value) == str(loaded.value)


@pytest.mark.parametrize("damage", ["", "7", '{"value": {"files": {}}}', "{"])
def test_damage_is_read_again(child: Path, cache: Path, damage: str) -> None:
    first = manifest_facts(str(child))
    (file,) = cache.rglob("manifest-*.json")
    file.write_text(damage or file.read_text().replace('"pins"', '"pinz"'))
    assert manifest_facts(str(child)) == first
