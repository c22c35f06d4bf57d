"""The shipped files are found in a checkout, and in a package laid out as a wheel lays it out."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

import npu_rl
from npu_rl.common.bundled import bundled_manifests, bundled_patchset, data_root, runtime_root
from npu_rl.common.errors import ManifestError
from tests.manifest.examples import MINIMAL
from tests.support import ok, run_program

PACKAGE = Path(npu_rl.__file__).resolve().parent


def test_a_checkout_is_its_own_root() -> None:
    assert data_root() == PACKAGE.parent
    assert (data_root() / "manifests" / "manifest.schema.json").is_file()
    assert runtime_root() == PACKAGE / "runtime"
    assert all(path.is_file() and path.stem == name for name, path in bundled_manifests().items())


@pytest.mark.parametrize(
    "name", ["", "verl", "../x", "verl/..", "verl/../..", "/etc/x", "verl/a/b", ".git/x", "a/\0"]
)
def test_a_patchset_is_named_component_and_version(name: str) -> None:
    with pytest.raises(ManifestError, match="Invalid patchset name"):
        bundled_patchset(name)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with npu_rl in it, its data inside, as an installed wheel has it."""
    site = tmp_path_factory.mktemp("site")
    leave = shutil.ignore_patterns("__pycache__", "runtime", "cli", "_data")
    shutil.copytree(PACKAGE, site / "npu_rl", ignore=leave)
    data = site / "npu_rl" / "_data"
    (data / "patchsets" / "verl" / "0.5.0").mkdir(parents=True)
    (data / "recipes").mkdir()
    (data / "manifests").mkdir()
    (data / "manifests" / "minimal.yaml").write_text(MINIMAL)
    (data / "manifests" / "bigger.yaml").write_text("extends: minimal\nname: bigger\n")
    (data / "manifests" / "own-files.yaml").write_text("extends: minimal\ntree: {patches: [./x.patch]}\n")
    (data / "manifests" / "by-path.yaml").write_text("extends: ./minimal.yaml\n")
    return site


def run(site: Path, code: str, cwd: Path) -> list[str]:
    option = "-P" if sys.version_info >= (3, 11) else "-B"
    env = {**os.environ, "PYTHONPATH": str(site)}
    return ok(run_program([sys.executable, option, "-c", code], env=env, cwd=cwd)).stdout.splitlines()


WHERE = """
from npu_rl.common.bundled import *
print(data_root()); print(*bundled_manifests()); print(bundled_patchset('verl/0.5.0')); print(runtime_root())
"""


def test_a_wheel_holds_its_own_data(wheel: Path, tmp_path: Path) -> None:
    package = (wheel / "npu_rl").resolve()
    assert run(wheel, WHERE, tmp_path) == [
        str(package / "_data"),
        "bigger by-path minimal own-files",
        str(package / "_data" / "patchsets" / "verl" / "0.5.0"),
        str(package / "runtime"),
    ]


REFUSE = """
from npu_rl.common.errors import ManifestError
from npu_rl.stack.manifest.load_manifest import load_manifest
for name in ('minmal', 'own-files', 'by-path'):
    try:
        load_manifest(name)
    except ManifestError as error:
        print(str(error).replace(chr(10), '|'))
"""


def test_what_a_bundled_manifest_may_not_do(wheel: Path, tmp_path: Path) -> None:
    unknown, own_files, by_path = run(wheel, REFUSE, tmp_path)
    assert "did you mean 'minimal'?" in unknown and "`npu-rl manifests list` prints the names" in unknown
    assert (
        "bundled:own-files.yaml:2|  why:   tree.patches[0]: a bundled manifest can't use files" in own_files
    )
    assert "can only extend another bundled manifest" in by_path and "bundled:by-path.yaml:1" in by_path
