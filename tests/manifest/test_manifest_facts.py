"""The part of a manifest that a recipe uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.common.bundled import bundled_manifests
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


@pytest.fixture
def child(tmp_path: Path) -> Path:
    (tmp_path / "parent.yaml").write_text(PARENT)
    path = tmp_path / "child.yaml"
    path.write_text(CHILD)
    return path


@pytest.mark.parametrize("name", bundled_manifests())
def test_the_facts_of_a_bundled_manifest(name: str) -> None:
    loaded = load_manifest(name)
    manifest = loaded.manifest
    first = manifest_facts(name)
    assert (first.name, first.env, Path(first.path)) == (manifest.name, manifest.env, loaded.path)
    pins = {part.ref for part in manifest.components.values() if part.ref}
    assert pins <= {*first.pins} and all("==" in pin for pin in {*first.pins} - pins)
    entries = [entry for part in manifest.components.values() for entry in part.patches]
    entries += manifest.tree.patches
    assert first.patch_files() == [loaded.locate(entry.path) for entry in entries if not entry.from_]


def test_the_facts_of_ones_own(child: Path) -> None:
    first = manifest_facts(str(child))
    assert (first.name, first.env, first.pins) == ("child", {"A": "1", "B": "two"}, (PIN,))
    assert first.patches == ("./fix.patch", "verl/0.5.0")
    assert first.patch_files()[0] == child.parent / "fix.patch"
