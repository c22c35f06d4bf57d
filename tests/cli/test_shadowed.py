"""What is judged can't judge: no file of the tree runs in the command that looks at it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from tests.cli.conftest import Installed, bare_env
from tests.support import clean_env, modules_after, ok, run_program
from tests.workspace.stack import Stack

# The start of every Python, its own folders, ours, and a package we need; the rest is asked of Python.
ALWAYS = {"sitecustomize", "usercustomize", "npu_rl", "encodings", "typer", "site", "os", "codecs"}
STRAY = "import os\nos.open({mark!r}, os.O_CREAT)\nos._exit(0)\n"


@pytest.fixture(scope="module")
def imported(stack: Stack, template: WorkspacePaths) -> set[str]:
    """Every module outside the package that `verify` and `verify --deep` load, by its first name."""
    loaded = modules_after(["verify", "--deep", "-w", template.root], stack.env, template.root)
    names = {name.partition(".")[0] for name in loaded}
    return {name for name in names | ALWAYS if name.isidentifier()} - {"__main__"}


@pytest.mark.second
def test_no_stray_file_runs_in_the_command_that_is_to_find_it(
    installed: Installed, imported: set[str], paths: WorkspacePaths, tmp_path: Path
) -> None:
    """Each as a file, and as a package, since a package goes before a file of its name."""
    assert {"re", "enum", "signal", "random", "json", "hashlib"} & imported
    ran = tmp_path / "ran"
    ran.mkdir()
    expected = set()
    for name in sorted(imported):
        for stray in (paths.code / f"{name}.py", paths.code / "strays" / name / "__init__.py"):
            stray.parent.mkdir(parents=True, exist_ok=True)
            stray.write_text(STRAY.format(mark=str(ran / name)))
            expected.add(f"code/{stray.relative_to(paths.code)}")
    path = os.pathsep.join([str(paths.code), str(paths.code / "strays")])
    env = bare_env(tmp_path) | {"PYTHONPATH": path}
    for options in (["--json"], ["--json", "--deep"]):
        for cwd in (tmp_path, paths.code):
            done = installed.run("verify", "-w", paths.root, *options, env=env, cwd=cwd)
            assert done.returncode == 3, done.stderr
            assert expected <= {drift["path"] for drift in json.loads(done.stdout)["drift"]}
    for command in (["status"], ["diff"]):
        ok(installed.run(*command, "-w", paths.root, env=env, cwd=paths.code))
    assert not list(ran.iterdir())


def test_an_activated_shell_is_one_of_those(
    installed: Installed, paths: WorkspacePaths, tmp_path: Path
) -> None:
    (paths.code / "sitecustomize.py").write_text("import os\nos._exit(0)\n")
    done = run_program(
        ["bash", "-c", '. "$1"/activate && "$2" verify --deep', "-", paths.root, installed.program],
        env=bare_env(tmp_path),
        cwd=paths.root,
    )
    assert done.returncode == 3
    assert "sitecustomize.py" in done.stdout


@pytest.mark.parametrize("name", ["sitecustomize", "usercustomize", "random", "hashlib", "yaml"])
def test_a_module_started_by_hand_leaves_them_behind(
    paths: WorkspacePaths, tmp_path: Path, name: str
) -> None:
    """`python -m npu_rl` can't be guarded before it runs; what only shadows is still not used."""
    (paths.code / f"{name}.py").write_text("def __getattr__(name):\n    raise SystemExit(0)\n")
    env = clean_env(tmp_path)
    env["PYTHONPATH"] = os.pathsep.join([str(paths.code), env["PYTHONPATH"]])
    for where in (tmp_path, paths.code):
        done = run_program([sys.executable, "-m", "npu_rl", "verify", "-w", paths.root], env=env, cwd=where)
        assert (done.returncode, done.stderr) == (3, "")
        assert f"code/{name}.py" in done.stdout


def test_the_current_folder_is_no_place_to_import_from(paths: WorkspacePaths, tmp_path: Path) -> None:
    (paths.code / "hashlib.py").write_text("raise SystemExit(0)\n")
    done = run_program(
        [sys.executable, "-m", "npu_rl", "verify", "-w", paths.root], env=clean_env(tmp_path), cwd=paths.code
    )
    assert (done.returncode, done.stderr) == (3, "")
