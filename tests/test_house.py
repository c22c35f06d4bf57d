"""A stranger finds things by name: no name stands for two things, and no folder becomes a town."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support import ROOT

PACKAGE = ROOT / "npu_rl"
# One file per command; what runs in other interpreters by names that upstream gives it.
APART = ("cli", "training/injected", "rehearsal/injected", "rehearsal/standins")
CONVENTIONAL = {"__init__", "__main__", "schema"}
LARGEST = 3000  # lines of a folder's own files

RELATIVE = re.compile(r"\bfrom[\s\\]*\.")  # every such import has it; the other modules need no parsing


def modules() -> list[Path]:
    found = [path for path in PACKAGE.rglob("*.py") if not str(path.relative_to(PACKAGE)).startswith(APART)]
    assert len(found) > 150
    return found


def test_a_module_name_stands_once() -> None:
    places = defaultdict(list)
    for path in modules():
        if path.stem not in CONVENTIONAL:
            places[path.stem].append(str(path.relative_to(PACKAGE)))
    assert [found for found in places.values() if len(found) > 1] == []


@pytest.mark.second
def test_a_public_class_name_stands_once() -> None:
    places = defaultdict(list)
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_folder_is_a_town() -> None:
    lines: dict[str, int] = defaultdict(int)
    for path in modules():
        lines[str(path.parent.relative_to(PACKAGE))] += len(path.read_text(encoding="utf-8").splitlines())
    assert {folder: count for folder, count in lines.items() if count > LARGEST} == {}


def test_no_import_climbs() -> None:
    """A dotted path says which room it reaches; `from ..` does not."""
    climbing = []
    inside = [
        path
        for path in modules()
        if not {PACKAGE / "weights" / "tensors", PACKAGE / "runtime"} & set(path.parents)
    ]  # both also work without npu-rl
    texts = {path: path.read_text(encoding="utf-8") for path in inside}
    for path, text in ((path, text) for path, text in texts.items() if RELATIVE.search(text)):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.level:
                climbing.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert climbing == []
