"""Python itself is asked what it finds in a tree with something untracked: all of that is drift."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.metadata
import itertools
import os
import random
from pathlib import Path

from npu_rl.stack.git.objects import FILE, object_id
from npu_rl.workspace.folder.file_check import Findings, examine

STEMS = (
    "zz",
    "pkg",
    "mod",
    "a b",
    "1x",
    "größe",
    "zz-1.0",
    "Zz_1",
    "__init__",
    "sitecustomize",
    ".hidden",
    "ZZ",
)
SUFFIXES = (
    *importlib.machinery.all_suffixes(), "", ".PY", ".Py", ".pyw", ".pyi", ".py.bak", ".SO", ".so.1", ".zip", ".txt",
    ".dist-info", ".DIST-INFO", ".Dist-Info", ".dist-info.bak", ".dist-infos", ".egg-info", ".EGG-INFO",
    ".egg-info.old", ".egg", ".EGG", ".egg-link", ".pth", ".json",
)  # fmt: skip
FOLDERS = ("", "pkg", "pkg/sub", "new", "new/deep", "not-a-name", "pkg/__pycache__")
SHAPES = {  # the file in it, if it is a folder
    "file": None,
    "folder with data": "x.bin",
    "folder with code": "__init__.py",
    "empty folder": "",
    "link to code": None,
    "link to nothing": None,
    "metadata": "METADATA",
}


def make(path: Path, shape: str, elsewhere: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    inside = SHAPES[shape]
    if inside is not None:
        path.mkdir()
    elif shape != "file":
        path.symlink_to(elsewhere if shape == "link to code" else "nowhere")
    if inside or shape == "file":
        (path / inside if inside else path).write_text("Metadata-Version: 2.1\nName: zz\nVersion: 1.0\n")


def what_python_finds(code: Path) -> set[str]:
    """Modules, packages and distributions. A folder that only holds data is a package, too."""
    importlib.invalidate_caches()
    found = {f"distribution {d._path.name}" for d in importlib.metadata.distributions(path=[str(code)])}  # type: ignore[attr-defined]
    pending = [("", [str(code)])]
    while pending:
        prefix, paths = pending.pop()
        names = {
            name.partition(".")[0] for place in paths if Path(place).is_dir() for name in os.listdir(place)
        }
        for name in filter(str.isidentifier, names - {"__pycache__"}):
            spec = importlib.machinery.PathFinder.find_spec(name, paths)
            if spec is None:
                continue
            inner = list(spec.submodule_search_locations or ())
            found.add(f"{prefix}{name}: {spec.origin}")
            if prefix.count(".") < 3:
                pending.append((f"{prefix}{name}.", inner))
    return found


def look(code: Path) -> Findings:
    files = {"pkg/__init__.py": b"", "pkg/mod.py": b"X = 1\n", "pkg/sub/__init__.py": b""}
    for name, data in files.items():
        (code / name).parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(code / name):
            (code / name).write_bytes(data)
    return examine(code, {name: (FILE, object_id("blob", data)) for name, data in files.items()}, {})


def test_all_that_python_finds_is_drift(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "__init__.py").write_text("")
    every = list(itertools.product(FOLDERS, STEMS, dict.fromkeys(SUFFIXES), SHAPES))
    chosen = random.Random(10).sample(every, int(os.environ.get("NPU_RL_PYTHON_CASES", "300")))
    seen = 0
    for number, (folder, stem, suffix, shape) in enumerate(chosen):
        code = tmp_path / str(number)
        look(code)
        before = what_python_finds(code)
        path = code / folder / f"{stem}{suffix}"
        if os.path.lexists(path):
            continue
        make(path, shape, elsewhere)
        new = what_python_finds(code) - before
        findings = look(code)
        seen += bool(new)
        assert findings.drift or not new, (str(path.relative_to(code)), shape, new)
        assert findings.drift or findings.ignored, (str(path), shape)
    assert seen > len(chosen) // 50
