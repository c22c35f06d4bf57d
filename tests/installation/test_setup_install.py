"""`npu-rl setup --install` as it is typed: into a new environment, killed, and from a private index."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from npu_rl.stack.installation.unfinished import unfinished_packages
from tests.installation.made_packages import Stack, backend, sdist, wheel
from tests.support import Repo, clean_env, ok, run_cli
from tests.training.processes import wait_for

BUILT = backend("built", "1.0", {"built.py": ""})
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


@pytest.mark.second
def test_a_new_environment_is_the_chosen_one(stack: Stack) -> None:
    env = locked(stack)
    place = stack.folder / "new env"
    words = ["setup", "-m", stack.manifest, "-w", stack.folder / "w", "--install", "--venv", place]
    planned = json.loads(ok(run_cli([*words, "--dry-run", "--json"], env)).stdout)
    assert planned["installed"] == {"one": "2.0", "two": "1.0"} and not place.exists()
    done = ok(run_cli(words, env))
    assert f"Your commands in this workspace use {place}/bin/python" in done.stderr
    assert f"2 packages installed into {place}/bin/python." in done.stdout
    again = ok(run_cli([*words[:-2], "--json"], env))  # into the chosen one
    assert json.loads(again.stdout)["packages"]["installed"] == {}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.second
def test_the_same_command_goes_on_after_a_kill(stack: Stack, number: int) -> None:
    """From a private index: its password is in no file, and its address in none of the environment."""
    gate, begun = stack.folder / "gate", stack.folder / "begun"
    stack.lists("built", *sdist("built", "1.0", WAITING.format(paths=(str(begun), str(gate)), built=BUILT)))
    env = locked(stack)
    stack.index.auth = ("someone", "s3cret-Pa55")
    env["PIP_INDEX_URL"] = stack.index.url_with("someone", "s3cret-Pa55")
    words = ["setup", "-m", str(stack.manifest), "-w", str(stack.folder / "w"), "--python", str(stack.python)]
    words.append("--install")
    argv = [sys.executable, "-m", "npu_rl", *words]
    with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: begun.exists() or process.poll() is not None, "a build", 120)
        (stack.site / "mine.py").write_text("")
        process.send_signal(number)
        gate.touch()
        assert "Traceback" not in process.communicate()[1]
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    assert unfinished_packages(stack.folder / "env") == {"one", "two", "built"}
    ok(run_cli(words, env))
    assert stack.runs("import one, two, built, mine; print(one.ONE)") == "2"
    assert not unfinished_packages(stack.folder / "env")
    for path in stack.folder.rglob("*"):
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        assert b"s3cret-Pa55" not in content, path
        assert stack.index.host.encode() not in content or "env" not in path.parts, path
