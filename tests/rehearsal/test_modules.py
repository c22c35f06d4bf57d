"""The modules of a package are found by their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_rl.common.errors import NpuRlError
from npu_rl.rehearsal.tree_modules import modules_of


def lay(code: Path, *files: str) -> Path:
    for file in files:
        (code / file).parent.mkdir(parents=True, exist_ok=True)
        (code / file).write_text("")
    return code


def test_packages_modules_and_namespaces_are_found(tmp_path: Path) -> None:
    code = lay(tmp_path, "a/__init__.py", "a/b.py", "a/space/c.py", "a/__main__.py", "other/x.py")
    assert modules_of(code, ["a"]) == ["a", "a.__main__", "a.b", "a.space.c"]


def test_what_python_cannot_import_is_left_out(tmp_path: Path) -> None:
    code = lay(
        tmp_path, "a/__init__.py", "a/two-words.py", "a/b.c.py", "a/.hidden.py", "a/data-1/x.py", "a/t.txt"
    )
    (code / "a" / "__pycache__").mkdir()
    (code / "a" / "__pycache__" / "y.py").write_text("")
    assert modules_of(code, ["a"]) == ["a"]


def test_a_dotted_package_and_a_single_file_are_packages_too(tmp_path: Path) -> None:
    code = lay(tmp_path, "m/core/__init__.py", "m/core/x.py", "m/training/y.py", "one.py")
    assert modules_of(code, ["m.core", "one"]) == ["m.core", "m.core.x", "one"]


def test_a_package_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NpuRlError, match="The tree has no package verl"):
        modules_of(tmp_path, ["verl"])
