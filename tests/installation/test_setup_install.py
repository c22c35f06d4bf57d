"""`npu-rl setup --install` as it is typed: with a workspace, killed while files are moved, and what is said of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from npu_rl.common.process import processes_of
from npu_rl.stack.installation.move_journal import FOLDER, InstallationFolder, staging_mark
from tests.in_process import run_here
from tests.installation.made_packages import Stack, sdist, tree, wheel
from tests.support import Repo, assert_told, clean_env, command_server, ok, run_cli
from tests.training.processes import wait_for

BUILT = """\
import pathlib, zipfile

def build_wheel(folder, settings=None, metadata=None):
    name = "built-1.0-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(folder) / name, "w") as archive:
        info, wheel = "built-1.0.dist-info", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        archive.writestr("built.py", "")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: built\\nVersion: 1.0\\n")
        archive.writestr(f"{info}/WHEEL", wheel)
        archive.writestr(f"{info}/RECORD", "")
    return name
"""
# A build that begins, and ends once a file is there.
WAITING = """\
import time
begun, gate = {paths!r}
exec({built!r})

def build_wheel(folder, settings=None, metadata=None, build=build_wheel):
    pathlib.Path(begun).touch()
    while not pathlib.Path(gate).exists():
        time.sleep(0.05)
    return build(folder)
"""


def locked(stack: Stack) -> dict[str, str]:
    """Give the stack a component that can be fetched, and a lock."""
    repo = Repo(stack.folder / "own.git")
    repo.commit({"own/__init__.py": ""}, "own")
    stack.git, stack.ref = repo.url, "refs/heads/main"
    stack.lists("one", *wheel("one", "2.0", {"one/__init__.py": "ONE = 2\n", "one/new.py": ""}))
    stack.lists("two", *wheel("two", "1.0"))
    stack.writes(device="cpu")
    env = clean_env(stack.folder / "machine") | {"PIP_CONFIG_FILE": "/dev/null", "PIP_RETRIES": "0"}
    env["PIP_INDEX_URL"] = stack.index.url
    ok(run_cli(["lock", "-m", stack.manifest], env))
    return env


def test_killed_while_files_are_moved_the_same_command_finishes(stack: Stack) -> None:
    env = locked(stack)
    stack.has(wheel("one", "1.0", {"one/__init__.py": "ONE = 1\n"}))
    work = stack.folder / "w"
    words = ["setup", "-m", str(stack.manifest), "-w", str(work), "--python", str(stack.python)]
    ok(run_cli(words, env))
    words.append("--install")
    before = tree(stack.folder / "env")
    planned = ok(run_cli([*words, "--dry-run", "--json"], env))
    assert json.loads(planned.stdout)["packages"]["installed"] == {"one": "2.0", "two": "1.0"}
    assert tree(stack.folder / "env") == before
    # The first move of that name takes the old package out, the second one brings the new one in.
    first = ["tests.installation.kill_at_move:watch", "one", 2]
    killed = command_server().run(words, env, "/", 120, first)
    assert killed.returncode == -signal.SIGKILL
    assert InstallationFolder(stack.folder / "env").is_interrupted()
    assert not (stack.site / "one").exists()
    assert (
        f"packages  packages are being moved into {stack.python}"
        in ok(run_cli(["status", "-w", work], env)).stdout
    )
    goes_on = (
        f"what finishes it: npu-rl setup --manifest NAME --workspace {work} --install --python {stack.python}"
    )
    assert goes_on in ok(run_cli(["verify", "-w", work], env)).stderr
    assert_told(run_cli([*words, "--dry-run"], env), "was interrupted", "without --dry-run", code=3)
    done = ok(run_cli(words, env))
    assert "Finished an interrupted installation of 2 packages." in done.stderr
    assert "has every package; nothing to install" in done.stdout
    assert stack.runs("import one, two; print(one.ONE)") == "2"
    assert not InstallationFolder(stack.folder / "env").path.exists()


def test_a_new_environment_that_a_kill_left_is_named(stack: Stack) -> None:
    """No interpreter is chosen yet: the first installation chooses it at its end."""
    env, work, place = locked(stack), stack.folder / "w", stack.folder / "new env"
    words = ["setup", "-m", str(stack.manifest), "-w", str(work), "--install", "--venv", str(place)]
    killed = command_server().run(words, env, "/", 120, ["tests.installation.kill_at_move:watch", "one", 1])
    assert killed.returncode == -signal.SIGKILL
    goes_on = f"setup --manifest NAME --workspace {work} --install --venv '{place}'"
    assert goes_on in ok(run_cli(["verify", "-w", work], env)).stderr
    assert goes_on in ok(run_cli(["status", "-w", work], env)).stdout
    ok(run_cli(words, env))
    assert "--venv" not in ok(run_cli(["status", "-w", work], env)).stdout


def test_interrupted_while_a_package_is_built_the_same_command_goes_on(stack: Stack) -> None:
    gate, begun = stack.folder / "gate", stack.folder / "begun"
    stack.lists("built", *sdist("built", "1.0", WAITING.format(paths=(str(begun), str(gate)), built=BUILT)))
    env = locked(stack)
    stack.has(wheel("one", "1.0", {"one/__init__.py": "ONE = 1\n"}))
    before = tree(stack.folder / "env")
    words = ["setup", "-m", str(stack.manifest), "-w", str(stack.folder / "w"), "--python", str(stack.python)]
    ok(run_cli(words, env))
    words.append("--install")
    argv = [sys.executable, "-m", "npu_rl", *words]
    with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: begun.exists() or process.poll() is not None, "a build", 120)
        assert begun.exists()
        seen = ok(run_cli(["verify", "-w", stack.folder / "w"], env)).stderr
        assert "before a change; what goes on: npu-rl setup --manifest NAME" in seen
        process.send_signal(signal.SIGINT)
        assert "Traceback" not in process.communicate()[1]
    assert process.returncode == 130
    assert tree(stack.folder / "env") == before
    gate.touch()
    ok(run_cli(words, env))
    assert stack.runs("import one, two, built; print(one.ONE)") == "2"


def test_what_a_killed_installation_has_started_is_ended_by_the_next_one(stack: Stack) -> None:
    """uv, and the build that it runs, outlive a kill of npu-rl alone, and would go on writing."""
    gate, begun = stack.folder / "gate", stack.folder / "begun"
    stack.lists("built", *sdist("built", "1.0", WAITING.format(paths=(str(begun), str(gate)), built=BUILT)))
    env = locked(stack)
    before = tree(stack.folder / "env")
    words = ["setup", "-m", str(stack.manifest), "-w", str(stack.folder / "w"), "--python", str(stack.python)]
    words.append("--install")
    with subprocess.Popen([sys.executable, "-m", "npu_rl", *words], env=env) as process:
        wait_for(lambda: begun.exists() or process.poll() is not None, "a build", 120)
        process.kill()
    (staging,) = (stack.folder / "env" / FOLDER).glob("staging-*")
    mark = staging_mark(staging.name)
    assert processes_of(mark)
    folder = InstallationFolder(stack.folder / "env")
    with folder.alone():
        folder.sweep()
        assert processes_of(mark) == []
    assert tree(stack.folder / "env") == before


def test_a_new_environment_is_the_chosen_one(stack: Stack) -> None:
    env = locked(stack)
    place = stack.folder / "new env"
    words = [
        "setup",
        "-m",
        str(stack.manifest),
        "-w",
        str(stack.folder / "w"),
        "--install",
        "--venv",
        str(place),
    ]
    done = ok(run_cli(words, env))
    assert f"Your commands in this workspace use {place}/bin/python" in done.stderr
    assert f"2 packages installed into {place}/bin/python." in done.stdout
    assert (place / "bin/python").exists()
    again = ok(run_cli([*words[:-2], "--json"], env))  # into the chosen one
    assert json.loads(again.stdout)["packages"]["installed"] == {}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-m", "quickstart", "--venv", "x"], "--venv is for installing packages"),
        (["-m", "quickstart", "--wheels", "x"], "--wheels is for installing packages"),
        (["-m", "quickstart", "--dry-run"], "--dry-run is for installing packages"),
        (["-m", "quickstart", "--install", "--venv", "x", "--python", "y"], "name different environments"),
        ([], "Missing option '--manifest' / '-m'"),
    ],
)
def test_options_that_mean_nothing_are_refused(tmp_path: Path, words: list[str], told: str) -> None:
    assert_told(run_here(["setup", *words], clean_env(tmp_path), tmp_path), told, code=2)
    assert not (tmp_path / "npu-rl-workspace").exists()
