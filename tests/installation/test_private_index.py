"""A private index with a password: pip and `setup --install` get there, and its address gets into no file."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from npu_rl.stack.installation.move_journal import FOLDER
from tests.installation.made_packages import Stack, sdist, wheel
from tests.installation.test_setup_install import BUILT, WAITING, locked
from tests.support import assert_told, ok, run_cli
from tests.training.processes import wait_for

USER, PASSWORD = "someone", "s3cret-Pa55"


@pytest.fixture
def private(stack: Stack) -> Iterator[dict[str, str]]:
    """The environment of a user whose pip.conf, and nothing else, has the index with its password."""
    env = locked(stack)
    stack.index.auth = (USER, PASSWORD)
    conf = stack.folder / "pip.conf"
    conf.write_text(f"[global]\nindex-url = {stack.index.url_with(USER, PASSWORD)}\nretries = 0\n")
    del env["PIP_INDEX_URL"]
    yield env | {"PIP_CONFIG_FILE": str(conf)}


def files_with(folder: Path, *texts: str) -> list[str]:
    """Return the files below a folder, but pip's own configuration, that contain one of these texts."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.name != "pip.conf":
            content = path.read_bytes()
            found += [str(path.relative_to(folder)) for text in texts if text.encode() in content]
    return found


def test_pip_itself_installs_the_printed_lines_from_it(stack: Stack, private: dict[str, str]) -> None:
    words = ["requirements", "--manifest", stack.manifest, "--format", "pip"]
    printed = ok(run_cli(words, private)).stdout
    assert "one==2.0" in printed and printed.count("--hash=sha256:") == 2
    listed = stack.folder / "requirements.txt"
    listed.write_text(printed)
    assert files_with(stack.folder, PASSWORD, stack.index.host) == []
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(stack.python),
        "install",
        "--no-deps",
        "--no-cache-dir",
    ]
    pip += ["--require-hashes", "-r", str(listed)]
    done = subprocess.run(pip, env=private, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {"/files/one/one-2.0-py3-none-any.whl", "/files/two/two-1.0-py3-none-any.whl"} <= {
        *stack.index.authorised
    }
    assert stack.runs("import one, two; print(one.ONE, two.VERSION)") == "2 1.0"
    # A file that is not the locked one is refused by the printed hash.
    stack.index.projects["two"][0].data = wheel("two", "1.0", {"two.py": "EVIL = 1\n"})[1]
    stack.index.projects["two"][0].sha256 = False
    again = subprocess.run(
        [*pip, "--force-reinstall"], env=private, capture_output=True, text=True, check=False
    )
    assert again.returncode != 0 and "DO NOT MATCH THE HASHES" in again.stderr
    assert stack.runs("import two; print(two.VERSION)") == "1.0"


def test_setup_install_writes_neither_its_address_nor_its_password(
    stack: Stack, private: dict[str, str]
) -> None:
    stack.lists("built", *sdist("built", "1.0", BUILT))
    stack.manifest.unlink()
    stack.writes(device="cpu")
    work = stack.folder / "w"
    words = ["setup", "-m", stack.manifest, "-w", work, "--python", stack.python, "--install"]
    done = ok(run_cli(words, private))
    assert "3 packages installed" in done.stdout
    assert stack.index.authorised
    assert stack.runs("import one, two, built; print(one.ONE)") == "2"
    for command in (["status", "-w", work], ["verify", "-w", work, "--deep"]):
        ok(run_cli(command, private))
    assert files_with(stack.folder, PASSWORD, stack.index.host) == []


def test_a_refused_password_is_in_no_message_and_no_file(stack: Stack, private: dict[str, str]) -> None:
    stack.index.auth = (USER, "another")
    words = ["setup", "-m", stack.manifest, "-w", stack.folder / "w", "--python", stack.python, "--install"]
    done = run_cli(words, private)
    assert_told(done, "refuses the user or the password")
    assert PASSWORD not in done.stdout + done.stderr and stack.index.host not in done.stdout + done.stderr
    assert files_with(stack.folder, PASSWORD, stack.index.host) == []


def test_killed_in_the_middle_only_a_private_cache_has_its_address(
    stack: Stack, private: dict[str, str]
) -> None:
    """uv keeps the address beside what it has fetched; the next installation removes that."""
    gate, begun = stack.folder / "gate", stack.folder / "begun"
    stack.lists("built", *sdist("built", "1.0", WAITING.format(paths=(str(begun), str(gate)), built=BUILT)))
    stack.manifest.unlink()
    stack.writes(device="cpu")
    words = ["setup", "-m", stack.manifest, "-w", stack.folder / "w", "--python", stack.python, "--install"]
    with subprocess.Popen([sys.executable, "-m", "npu_rl", *map(str, words)], env=private) as process:
        wait_for(lambda: begun.exists() or process.poll() is not None, "a build", 120)
        assert begun.exists()
        process.kill()
    assert process.returncode == -signal.SIGKILL
    cache = stack.folder / "env" / FOLDER / "cache"
    assert cache.stat().st_mode & 0o077 == 0
    assert files_with(stack.folder, PASSWORD) == []
    assert {*files_with(stack.folder, stack.index.host)} == {
        f"env/{FOLDER}/cache/{path}" for path in files_with(cache, stack.index.host)
    }
    gate.touch()
    ok(run_cli(words, private))
    assert files_with(stack.folder, PASSWORD, stack.index.host) == []
