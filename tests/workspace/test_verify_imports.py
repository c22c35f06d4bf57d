"""`verify --imports` on real workspaces, with interpreters that find modules elsewhere or have other packages."""

from __future__ import annotations

import json
import os
import shutil
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.bundled import bundled_manifests
from npu_rl.common.interpreter import Interpreter
from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.rehearsal.import_check.locked_packages import package_findings
from npu_rl.stack.lock import lock_model
from npu_rl.stack.pylocks.pylock_file import read_pylock
from npu_rl.stack.pylocks.pylock_targets import pylock_path, targets
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from tests.in_process import run_here
from tests.workspace.stack import Stack

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


# As an editable installation leaves it.
FINDER = """\
import importlib.util, sys

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "gamma":
            return importlib.util.spec_from_file_location(name, PLACE)

sys.meta_path.insert(0, Finder)
"""


@pytest.fixture
def paths(template: WorkspacePaths) -> WorkspacePaths:
    return template


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter with nothing but the metadata of torch."""
    venv.create(tmp_path / "v", symlinks=True)
    python = tmp_path / "v/bin/python"
    (site(python) / "torch-2.13.0.dist-info").mkdir()
    (site(python) / "torch-2.13.0.dist-info/METADATA").write_text("Name: torch\nVersion: 2.13.0\n")
    return python


def site(python: Path) -> Path:
    return next(python.parent.parent.glob("lib/python3*/site-packages"))


def imports(stack: Stack, paths: WorkspacePaths, python: Path) -> tuple[int, dict[str, Any]]:
    done = run_here(["verify", "-w", paths.root, "--imports", "--python", python, "--json"], stack.env)
    return done.returncode, json.loads(done.stdout)["imports"]


def told(found: dict[str, Any], rule: str) -> list[str]:
    return [f"{one['where']}: {one['message']}" for one in found["findings"] if one["rule"] == rule]


def test_a_tree_alone_is_found(stack: Stack, paths: WorkspacePaths, python: Path) -> None:
    code, found = imports(stack, paths, python)
    assert (code, found["ok"]) == (0, True)
    assert found["locked_packages"] is None
    assert told(found, "no-pylock")
    assert not list(paths.root.rglob("__pycache__"))


def test_a_second_copy_and_a_module_that_comes_from_elsewhere_are_named(
    stack: Stack, paths: WorkspacePaths, python: Path
) -> None:
    """Installed beside the tree; by an editable installation's finder, which is asked first."""
    (site(python) / "alpha").mkdir()
    for name in ("__init__.py", "core.py"):
        (site(python) / "alpha" / name).write_text("")
    place = site(python) / "gamma.py"
    (site(python) / "_editable.py").write_text(FINDER.replace("PLACE", repr(str(place))))
    (site(python) / "editable.pth").write_text("import _editable\n")
    (site(python) / "gamma.py").write_text("")
    code, found = imports(stack, paths, python)
    assert (code, found["ok"]) == (3, False)
    assert told(found, "module-elsewhere") == [
        f"gamma: resolves to {site(python) / 'gamma.py'}, not to the tree"
    ]
    assert told(found, "module-twice") == [f"alpha: a second copy is at {site(python) / 'alpha'}"]


def test_a_regular_package_takes_the_place_of_a_namespace_of_the_tree(
    stack: Stack, paths: WorkspacePaths, python: Path
) -> None:
    from npu_rl.common.process import RUN_VARIABLE
    from npu_rl.common.python_roots import INJECTED
    from npu_rl.rehearsal.child_process import TrainingChild
    from tests.training.processes import new_id

    tree = python.parent.parent / "code"
    for name in ("tools/convert.py", "tools/deep/one.py", "wide/part.py"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("")
    for name in ("tools/__init__.py", "wide/other.py", "wide/part.py"):
        (site(python) / name).parent.mkdir(parents=True, exist_ok=True)
        (site(python) / name).write_text("")
    environment = {"PYTHONPATH": os.pathsep.join(map(str, (INJECTED, tree))), RUN_VARIABLE: new_id()}
    _, *lines = TrainingChild(tree, python, environment).run("sources", {}, 60.0)
    assert lines == [
        {"elsewhere": "tools", "place": str(site(python) / "tools/__init__.py")},
        {"copy": "wide.part", "place": str(site(python) / "wide/part.py")},
    ]


def test_a_workspace_that_differs_from_its_lock_is_not_imported(
    stack: Stack, paths: WorkspacePaths, python: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(paths.root, tmp_path / "other", symlinks=True)
    (other / "code/alpha/core.py").write_text("open('/dev/full')\n")
    done = run_here(["verify", "-w", other, "--imports", "--python", python, "--json"], stack.env)
    assert done.returncode == 3
    assert json.loads(done.stdout)["imports"] is None


# -- packages ------------------------------------------------------------------------------------------


def quickstart(python: str = "3.11") -> tuple[Path, Any, Any]:
    manifest = bundled_manifests()["quickstart"]
    lock = lock_model.read(lock_model.lock_path(manifest))
    target = next(one for one in targets(lock.device, python) if one.machine == "x86_64")
    return manifest, lock, read_pylock(pylock_path(manifest, target))


def test_packages_are_held_against_the_committed_lock() -> None:
    _, lock, pylock = quickstart("3.11")
    versions = {package.name: package.version for package in pylock.packages} | {"torch": "2.13.0+cpu"}
    have = Interpreter("/p", "3.11.7", versions, machine="x86_64")
    count, found = package_findings("quickstart", lock, have)
    assert count == len(pylock.packages)
    assert [one for one in found if one.severity is Severity.ERROR] == []
    versions |= {"ray": "2.40.0", "numpy": f"{versions['numpy']}+local"}
    del versions["einops"]
    python = Interpreter("/p", "3.11.7", versions, machine="x86_64")
    _, found = package_findings("quickstart", lock, python, "npu-rl setup --install")
    told = [one.message for one in found if one.rule == "package-version"]
    assert {one.fix for one in found if one.rule == "package-version"} == {"npu-rl setup --install"}
    assert told == [
        f"einops=={next(p.version for p in pylock.packages if p.name == 'einops')} is not installed",
        "ray 2.40.0 is installed, 2.42.1 is locked",
    ]
    del versions["torch"]
    _, found = package_findings(
        "quickstart", lock, Interpreter("/p", "3.11.7", versions, machine="x86_64"), "it"
    )
    assert [one.fix for one in found if one.rule == "torch"] == ["it"]


@pytest.mark.parametrize(
    ("manifest", "package", "named"),
    [
        ("deepseek-r1-zero", "triton", "triton 9.9"),
        ("deepseek-r1-zero", "flash-attn", "flash-attn 9.9"),
        ("pai-megatron-deepseek-v3", "torch-npu", "torch-npu 9.9"),
        ("pai-megatron-deepseek-v3", "triton-ascend", "triton-ascend 9.9"),
    ],
)
def test_forbidden_packages_are_named_per_device(manifest: str, package: str, named: str) -> None:
    lock = lock_model.read(lock_model.lock_path(bundled_manifests()[manifest]))
    have = Interpreter("/p", "3.10.7", {package: "9.9"}, machine="x86_64")
    _, found = package_findings(manifest, lock, have)
    (one,) = (one for one in found if one.rule == "forbidden-packages")
    assert one.severity is Severity.ERROR
    assert named in one.message
