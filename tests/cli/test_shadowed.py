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

STRAY = "import os\nos.open({mark!r}, os.O_CREAT)\nos._exit(0)\n"


@pytest.fixture(scope="module")
def imported(installed: Installed, stack: Stack, template: WorkspacePaths) -> set[str]:
    """Every module outside the package that `verify` and `verify --deep` load, but those of Python's own start.

    npu_rl itself and __future__ come before our first line: a file of these names would run.
    """
    loaded = modules_after(["verify", "--deep", "-w", template.root], stack.env, template.root)
    code = "import sys; print(*sys.modules)"
    start = ok(run_program([installed.program.with_name("python"), "-c", code], env={})).stdout.split()
    names = {name.partition(".")[0] for name in (*loaded, "typer")}
    return {name for name in names - {*start, "npu_rl", "__future__"} if name.isidentifier()}


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


@pytest.mark.parametrize("name", ["sitecustomize", "usercustomize", "random", "hashlib", "yaml"])
def test_a_stray_file_of_an_activated_shell_is_left_behind(
    installed: Installed, paths: WorkspacePaths, tmp_path: Path, name: str
) -> None:
    """One that Python imports at its start has run; what it shadows or changes is still not used."""
    (paths.code / f"{name}.py").write_text("def __getattr__(name):\n    raise SystemExit(0)\n")
    env, shell = bare_env(tmp_path), '. "$1"/activate && shift && exec "$@"'
    python = installed.program.with_name("python")
    for program in ([installed.program], [python, "-m", "npu_rl"]):
        for where in (tmp_path, paths.code):
            words = ["bash", "-c", shell, "-", paths.root, *program, "verify", "-w", paths.root]
            done = run_program(words, env=env, cwd=where)
            assert (done.returncode, done.stderr) == (3, "")
            assert f"code/{name}.py" in done.stdout


def test_the_current_folder_is_no_place_to_import_from(paths: WorkspacePaths, tmp_path: Path) -> None:
    (paths.code / "hashlib.py").write_text("raise SystemExit(0)\n")
    done = run_program(
        [sys.executable, "-m", "npu_rl", "verify", "-w", paths.root], env=clean_env(tmp_path), cwd=paths.code
    )
    assert (done.returncode, done.stderr) == (3, "")


def test_what_is_installed_is_found_though_pythonpath_names_it(installed: Installed, tmp_path: Path) -> None:
    (site,) = installed.program.parent.parent.glob("lib/python3*/site-packages")
    env = bare_env(tmp_path) | {"PYTHONPATH": str(site)}
    assert ok(installed.run("--version", env=env, cwd=site)).stdout.startswith("npu-rl ")


@pytest.mark.second
@pytest.mark.pypi
def test_pip_installs_the_program(tmp_path: Path) -> None:
    from tests.cli.conftest import packages
    from tests.support import ROOT

    home = tmp_path / "venv"
    ok(run_program([sys.executable, "-m", "venv", home], env=dict(os.environ)))
    pip = [home / "bin/python", "-m", "pip", "install", "--quiet", "--no-deps", ROOT]
    ok(run_program(pip, env=dict(os.environ), timeout=300))
    (site,) = home.glob("lib/python3*/site-packages")
    (site / "needs.pth").write_text("\n".join(packages()) + "\n")
    done = ok(run_program([home / "bin/npu-rl", "manifests", "list"], env=bare_env(tmp_path), cwd=tmp_path))
    assert "quickstart" in done.stdout
