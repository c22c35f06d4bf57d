"""The log of git commands: its entries, no secrets, and the commands that name it."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from npu_rl import cli
from npu_rl.common.errors import LockError
from npu_rl.common.user_state import state_folder
from npu_rl.stack.git import command_log
from npu_rl.stack.git.command import Git, GitError, ObjectReader, init_bare
from npu_rl.stack.git.environment import Credentials
from tests.support import clean_env, modules_after, run_cli, run_program

TOKEN = "ghp_S3cretOfThe7ests"  # of nobody's


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The log's place; commands are logged as after `npu-rl train quickstart env.MY_TOKEN=...`."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("MY_SERVICE_TOKEN", TOKEN)
    for name in ("_log", "echo", "_command_line"):
        monkeypatch.setattr(command_log, name, None)
    command_log.begin(["train", "quickstart", f"env.MY_TOKEN={TOKEN[::-1]}"])
    yield tmp_path / "state" / "npu-rl" / command_log.FILE


@pytest.fixture
def repository(tmp_path: Path) -> Git:
    init_bare(tmp_path / "repository")
    return Git(tmp_path / "repository")


def test_entries_of_a_command(log: Path, repository: Git) -> None:
    repository.run("write-tree")
    with pytest.raises(GitError):
        repository.run("cat-file", "-p", "0" * 40)
    with ObjectReader(repository):
        pass
    with pytest.raises(KeyboardInterrupt), command_log.recorded(["gc"], repository.git_dir):
        raise KeyboardInterrupt
    command_log.end(1.5)
    first, failed, why, read, cut, last = log.read_text().splitlines()
    assert re.search(rf"Z \d+ +0\.\d{{3}} s  exit 0    git write-tree  \(in {repository.git_dir}\)$", first)
    assert re.search(r" s  exit 128  git cat-file -p 0{40}  \(in ", failed) and why.startswith("    fatal: ")
    assert "exit 0    git cat-file --batch" in read and "no exit   git gc" in cut
    assert last.endswith("1.500 s  in all: npu-rl train quickstart 'env.MY_TOKEN=***'")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_only_a_command_logs(log: Path, repository: Git, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_log, "_command_line", None)
    repository.run("write-tree")
    assert command_log.note("x") is None and not log.parent.exists()


@pytest.mark.parametrize(
    "url",
    [f"https://me:{TOKEN}@127.0.0.1:1/x", f"https://127.0.0.1:1/x?access_token={TOKEN}", f"file:///{TOKEN}"],
)
def test_no_secret_of_a_url_a_setting_or_the_environment(log: Path, repository: Git, url: str) -> None:
    with pytest.raises(GitError):
        repository.transfer("fetch", url, "main", config={"http.extraHeader": f"Authorization: {TOKEN}"})
    assert " git fetch " in log.read_text() and TOKEN not in log.read_text()


def test_messages_of_a_remote(log: Path, repository: Git) -> None:
    """It may repeat the credentials that it was given, steer a terminal, or imitate an entry."""
    credentials = Credentials("https://127.0.0.1:1", "a-user-name", "ünique pass/word")
    with command_log.recorded(["fetch", "x\ny"], repository.git_dir, credentials) as outcome:
        outcome.code = 128
        outcome.stderr = "no a-user-name with ünique pass/word\x1b[2J\n2026-01-01T00:00:00Z 1  forged"
    lines = log.read_text().splitlines()
    assert lines[-2:] == ["    no *** with ***\\x1b[2J", "    2026-01-01T00:00:00Z 1  forged"]
    assert sum(bool(re.match(r"\d{4}-", line)) for line in lines) == 1


def test_a_log_that_cannot_be_written_fails_nothing(log: Path, repository: Git) -> None:
    log.parent.parent.write_text("a file where the folder would be")
    repository.run("write-tree")
    assert command_log.written() is None
    if os.geteuid() == 0:  # and nothing is made in the home of another user, which sudo may keep as HOME
        log.parent.parent.unlink()
        log.parent.parent.mkdir()
        os.chown(log.parent.parent, 12345, 12345)
        repository.run("write-tree")
        assert list(log.parent.parent.iterdir()) == []


def test_a_large_log_is_renamed(log: Path, repository: Git) -> None:
    log.parent.mkdir(parents=True)
    log.write_bytes(b"x" * 5_000_001)
    repository.run("write-tree")
    assert log.with_name("git.log.1").stat().st_size == 5_000_001 and log.stat().st_size < 1000


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({"XDG_STATE_HOME": "/s", "HOME": "/h"}, Path("/s/npu-rl")),
        ({"XDG_STATE_HOME": "relative", "HOME": "/h"}, Path("/h/.local/state/npu-rl")),
        ({"XDG_STATE_HOME": "", "HOME": ""}, None),
    ],
)
def test_the_state_folder(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], place: Path | None
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert state_folder() == place


def test_an_error_that_is_its_own_cause(log: Path, repository: Git) -> None:
    """`raise error from error` ran for ever in the search for a git error."""
    repository.run("rev-parse", "--git-dir")
    error = LockError("it does not apply")
    with pytest.raises(LockError) as raised:
        raise error from error
    assert cli._log_of(raised.value) == ""


# -- the command line ----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["before", "after"])
def test_an_error_of_git_names_the_log_and_v_prints_the_commands(tmp_path: Path, place: str) -> None:
    manifest = tmp_path / "m.yaml"
    manifest.write_text(
        "schema: 1\nname: m\ntitle: A test\ndevice: cpu\ncomponents:\n  a:\n"
        f"    sources: [{{git: file://{tmp_path}/nowhere}}]\n    ref: {'1' * 40}\n    take: [{{from: x, to: x}}]\n"
    )
    words = ["-v", "lock", "-m", manifest] if place == "before" else ["lock", "-m", manifest, "-v"]
    done = run_cli(words, {**clean_env(tmp_path), "NPU_RL_RETRIES": "0"})
    log = tmp_path / "home/.local/state/npu-rl/git.log"
    lines = done.stderr.splitlines()
    assert done.returncode == 1 and f"  log:   {log}" in lines
    assert any(re.match(r"git: \d\.\d{3} s, exit 128: git fetch ", line) for line in lines)
    assert any(re.fullmatch(rf"npu-rl: \d+\.\d{{3}} s in all; .* {log}", line) for line in lines)
    assert " git fetch " in log.read_text()


def test_a_command_without_git_has_its_time_and_no_log(tmp_path: Path) -> None:
    env = clean_env(tmp_path)
    done, quiet = (run_cli([*words], env, tmp_path) for words in (["verify", "-v"], ["verify"]))
    assert (done.returncode, quiet.returncode) == (3, 3) and "log:" not in done.stderr
    left = [line for line in done.stderr.splitlines() if not re.fullmatch(r"npu-rl: \S+ s in all", line)]
    assert left == quiet.stderr.splitlines() != done.stderr.splitlines()
    for words in (["--version"], ["verify", "--help"]):
        assert "npu_rl.stack.git.command_log" not in modules_after(words, env, tmp_path)
    assert "npu_rl.common.masking" not in modules_after(["manifests", "list"], env, tmp_path)
    assert os.listdir(tmp_path / "home") == []


def test_an_unexpected_error_is_in_the_log_that_it_names(tmp_path: Path) -> None:
    code = (
        "import sys\nsys.argv = ['npu-rl', 'manifests', 'list', '--json']\n"
        "import npu_rl.cli as cli, npu_rl.common.bundled as bundled\n"
        f"def broken(): raise ZeroDivisionError('with {TOKEN}')\n"
        "bundled.bundled_manifests = broken\n"
        "cli.main()\n"
    )
    env = {**clean_env(tmp_path), "MY_SERVICE_TOKEN": TOKEN}
    done = run_program([sys.executable, "-c", code], env=env)
    log = tmp_path / "home/.local/state/npu-rl/git.log"
    assert done.returncode == 1 and f"this command in {log}." in done.stderr
    assert "ZeroDivisionError: with ***" in log.read_text() and TOKEN not in log.read_text()
