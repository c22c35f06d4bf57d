"""The rules on who imports whom hold, and each is shown to fail where it is broken."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT, run_program

# Contract -> a module, and the import that breaks the contract there.
VIOLATIONS = {
    "Arrows point down": ("common/errors.py", "import npu_rl.stack.store"),
    "A recipe is judged without a workspace, a workspace is laid without a recipe": (
        "recipes/plan/rules/rule.py",
        "import npu_rl.workspace.folder",
    ),
    "One file runs git, one starts the processes of a run": (
        "training/record/run_record.py",
        "import subprocess",
    ),
    "npu-rl itself imports nothing of the training interpreter's": (
        "workspace/folder/file_check.py",
        "import numpy",
    ),
    "The runtime needs nothing of ours": ("runtime/used.py", "from npu_rl.common.errors import NpuRlError"),
}


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return run_program(
        [sys.executable, "-c", code, "--no-cache", "--config", str(folder / "pyproject.toml")],
        env={"PATH": "", "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "LANG": "C.UTF-8"},
        cwd=folder,
    )


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("contracts")
    shutil.copytree(ROOT / "npu_rl", folder / "npu_rl", ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_every_contract_has_a_violation() -> None:
    named = re.findall(r'(?m)^name = "([^"]+)".*\ntype = ', (ROOT / "pyproject.toml").read_text())
    assert set(named) == set(VIOLATIONS)


@pytest.mark.second
@pytest.mark.parametrize("contract", VIOLATIONS)
def test_a_contract_fails_where_it_is_broken(copy: Path, contract: str) -> None:
    name, line = VIOLATIONS[contract]
    module = copy / "npu_rl" / name
    before = module.read_text()
    module.write_text(f"{before}\n{line}\n")
    try:
        done = lint(copy)
    finally:
        module.write_text(before)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{contract} BROKEN" in done.stdout, done.stdout + done.stderr


def test_the_runtime_is_held_against_every_module_of_ours() -> None:
    text = (ROOT / "pyproject.toml").read_text().partition('"The runtime needs nothing of ours"')[2]
    forbidden = set(re.findall(r'"npu_rl\.(\w+)"', text)) - {"runtime"}
    parts = (ROOT / "npu_rl").iterdir()
    ours = {p.stem for p in parts if p.suffix == ".py" or (p / "__init__.py").is_file()}
    assert forbidden == ours - {"__init__", "runtime"}


def imported(source: str) -> set[str]:
    """The top packages that a Python file imports."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found


def test_what_runs_in_the_training_interpreter_needs_nothing_of_ours() -> None:
    rooms = ("training/injected", "rehearsal/injected", "rehearsal/standins", "weights/tensors")
    files = [f for room in rooms for f in (ROOT / "npu_rl" / room).rglob("*.py")]
    assert len(files) > 40
    assert not [str(f) for f in files if "npu_rl" in imported(f.read_text(encoding="utf-8"))]
    assert "npu_rl" in imported("def f():\n    from npu_rl.common.errors import NpuRlError")
