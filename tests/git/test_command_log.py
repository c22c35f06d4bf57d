"""The log of git commands: what is in it, and what never is."""

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
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from tests.support import clean_env, ok, run_cli, run_program
from tests.workspace.conftest import paths, stack, template

__all__ = ["paths", "stack", "template"]

TOKEN = "ghp_S3cretOfThe7ests"  # of nobody's


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The log's place; commands are logged as after `npu-rl setup env.MY_TOKEN=...`."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("MY_SERVICE_TOKEN", TOKEN)
    for name in ("_log", "echo"):
        monkeypatch.setattr(command_log, name, None)
    monkeypatch.setattr(command_log, "_command_line", None)
    command_log.begin(["train", "quickstart", f"env.MY_TOKEN={TOKEN[::-1]}"])
    yield tmp_path / "state" / "npu-rl" / command_log.FILE


@pytest.fixture
def repository(tmp_path: Path) -> Git:
    init_bare(tmp_path / "repository")
    return Git(tmp_path / "repository")


def test_a_command_its_time_and_its_outcome(log: Path, repository: Git) -> None:
    repository.run("write-tree")
    with pytest.raises(GitError):
        repository.run("cat-file", "-p", "0" * 40)
    with ObjectReader(repository):
        pass
    first, *lines = log.read_text().splitlines()
    assert re.search(r"Z \d+  npu-rl [\d.]+: npu-rl train quickstart 'env.MY_TOKEN=\*\*\*'$", first)
    assert re.search(rf"  0\.\d{{3}} s  exit 0    git write-tree  \(in {repository.git_dir}\)$", lines[0])
    assert re.search(r" s  exit 128  git cat-file -p 0{40}  \(in ", lines[1])
    assert lines[2].startswith("    fatal: ")
    assert re.search(r"exit 0    git cat-file --batch  \(in ", lines[3])
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_nothing_is_logged_before_a_command_began(
    tmp_path: Path, repository: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(command_log, "_command_line", None)
    repository.run("write-tree")
    assert not (tmp_path / "state").exists()
    assert command_log.note("x") is None


@pytest.mark.parametrize(
    "url",
    [
        f"https://me:{TOKEN}@127.0.0.1:1/x",
        f"https://{TOKEN}@127.0.0.1:1/x",
        f"https://127.0.0.1:1/x?access_token={TOKEN}",
        f"https://127.0.0.1:1/{TOKEN}/x",
        "https://me:pa%20ss@127.0.0.1:1/" + "x/" * 300 + TOKEN,
        "x" * 490 + f"/https://me:{TOKEN}@127.0.0.1:1/x",
    ],
)
def test_no_secret_of_a_url_or_of_the_environment(log: Path, repository: Git, url: str) -> None:
    with pytest.raises(GitError):
        repository.transfer("fetch", url, "main", config={"http.extraHeader": f"Authorization: {TOKEN}"})
    said = "".join(path.read_text() for path in log.parent.iterdir())
    assert " git fetch " in said
    assert "127.0.0.1" in said or url.startswith("xxx")
    assert TOKEN not in said and TOKEN[:12] not in said and "pa%20ss" not in said
    assert TOKEN[::-1] not in said


def test_no_credentials_of_a_fetch(log: Path, repository: Git) -> None:
    """A remote may repeat what it was given."""
    password = "ünique pass/word"
    credentials = Credentials("https://127.0.0.1:1", "a-user-name", password)
    with command_log.recorded(["fetch", "x"], repository.git_dir, credentials) as outcome:
        outcome.code, outcome.stderr = 128, f"remote: no a-user-name with {password} or {TOKEN}\x1b[2J"
    said = log.read_text()
    assert "remote: no *** with *** or ***\\x1b[2J" in said


def test_a_message_can_not_pass_for_a_line_of_the_log(log: Path, repository: Git) -> None:
    with command_log.recorded(["fetch", "x\ny"], repository.git_dir) as outcome:
        outcome.code, outcome.stderr = 1, "one\n2026-01-01T00:00:00Z 1  forged"
    assert [line for line in log.read_text().splitlines() if "forged" in line] == [
        "    2026-01-01T00:00:00Z 1  forged"
    ]
    assert sum(bool(re.match(r"\d{4}-", line)) for line in log.read_text().splitlines()) == 2


def test_a_command_that_was_cut_short(log: Path, repository: Git) -> None:
    with pytest.raises(KeyboardInterrupt):
        with command_log.recorded(["fetch", "x"], repository.git_dir):
            raise KeyboardInterrupt
    assert "no exit   git fetch x" in log.read_text()


def test_a_log_that_can_not_be_written_fails_nothing(
    log: Path, repository: Git, capsys: pytest.CaptureFixture[str]
) -> None:
    log.parent.parent.write_text("a file where the folder would be")
    repository.run("write-tree")
    assert command_log.written() is None
    assert capsys.readouterr() == ("", "")


def test_a_large_log_is_begun_anew(log: Path, repository: Git) -> None:
    log.parent.mkdir(parents=True)
    log.write_bytes(b"x" * 5_000_001)
    repository.run("write-tree")
    assert log.with_name("git.log.1").stat().st_size == 5_000_001 and log.stat().st_size < 1000


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_nothing_is_made_in_the_home_of_another_user(log: Path, repository: Git) -> None:
    """As under `sudo`, which may keep HOME."""
    log.parent.parent.mkdir()
    os.chown(log.parent.parent, 12345, 12345)
    repository.run("write-tree")
    assert list(log.parent.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({"XDG_STATE_HOME": "/s", "HOME": "/h"}, Path("/s/npu-rl")),
        ({"XDG_STATE_HOME": "relative", "HOME": "/h"}, Path("/h/.local/state/npu-rl")),
        ({"HOME": ""}, None),
    ],
)
def test_the_state_folder(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], place: Path | None
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert state_folder() == place


# -- the command line ----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["before", "after"])
def test_v_prints_each_git_command(tmp_path: Path, paths: WorkspacePaths, place: str) -> None:
    (paths.code / "new.py").write_text("x = 1\n")
    words = ["-v", "diff"] if place == "before" else ["diff", "-v"]
    env = clean_env(tmp_path)
    quiet = run_cli(["diff", "-w", str(paths.root)], env)
    done = ok(run_cli([*words, "-w", str(paths.root)], env))
    assert done.stdout == quiet.stdout and "new.py" in done.stdout
    assert quiet.stderr == ""
    assert re.search(r"^git: 0\.\d{3} s, exit 0: git ", done.stderr, re.MULTILINE)
    log = tmp_path / "home/.local/state/npu-rl/git.log"
    assert f"git: logged in {log}" in done.stderr
    assert re.fullmatch(r"npu-rl: \d+\.\d{3} s in all", done.stderr.splitlines()[-1])
    lines = log.read_text().splitlines()
    assert [bool(re.search(r"npu-rl (-v )?diff", line)) for line in lines].count(True) == 2
    assert [bool(re.search(r"\d s  in all$", line)) for line in lines].count(True) == 2


@pytest.mark.parametrize("words", [["verify"], ["train", "quickstart"], ["manifests", "list"]])
def test_v_tells_the_time_of_any_command(tmp_path: Path, words: list[str]) -> None:
    env = clean_env(tmp_path)
    done, quiet = run_cli([*words, "-v"], env, tmp_path), run_cli(words, env, tmp_path)
    assert (done.returncode, done.stdout) == (quiet.returncode, quiet.stdout)
    left = [line for line in done.stderr.splitlines() if not re.match(r"npu-rl: \d+\.\d{3} s in all$", line)]
    assert left == quiet.stderr.splitlines()


def test_an_error_of_git_names_the_log(tmp_path: Path) -> None:
    manifest = tmp_path / "m.yaml"
    manifest.write_text(
        "schema: 1\nname: m\ntitle: A test\ndevice: cpu\ncomponents:\n  a:\n"
        f"    sources: [{{git: file://{tmp_path}/nowhere}}]\n    ref: {'1' * 40}\n    take: [{{from: x, to: x}}]\n"
    )
    done = run_cli(["lock", "--manifest", str(manifest)], {**clean_env(tmp_path), "NPU_RL_RETRIES": "0"})
    assert done.returncode == 1
    log = tmp_path / "home/.local/state/npu-rl/git.log"
    assert done.stderr.splitlines()[-1] == f"  log:   {log}", done.stderr
    assert " git fetch " in log.read_text() or " git ls-remote " in log.read_text()


def test_an_error_of_another_kind_names_none(tmp_path: Path) -> None:
    done = run_cli(["verify"], clean_env(tmp_path))
    assert done.returncode == 3 and "log:" not in done.stderr
    assert not (tmp_path / "home/.local").exists()


def test_an_unexpected_error_names_the_log_and_stands_in_it(tmp_path: Path) -> None:
    code = (
        "import sys\nsys.argv = ['npu-rl', 'manifests', 'list', '--json']\n"
        "import npu_rl.cli as cli, npu_rl.common.bundled as bundled\n"
        f"def broken(): raise ZeroDivisionError('with {TOKEN}')\n"
        "bundled.bundled_manifests = broken\n"
        "cli.main()\n"
    )
    env = {**clean_env(tmp_path), "MY_SERVICE_TOKEN": TOKEN}
    done = run_program([sys.executable, "-c", code], env=env)
    assert done.returncode == 1
    log = tmp_path / "home/.local/state/npu-rl/git.log"
    assert (
        f"this is a bug in npu-rl. Please report it with the lines above and those of this command in {log}."
        in (done.stderr)
    )
    said = log.read_text()
    assert "ZeroDivisionError: with ***" in said and TOKEN not in said


def test_help_writes_and_imports_no_log(tmp_path: Path) -> None:
    from tests.support import modules_after

    env = clean_env(tmp_path)
    for words in (["--version"], ["--help"], ["verify", "--help"]):
        assert "npu_rl.stack.git.command_log" not in modules_after(words, env, tmp_path)
    assert "npu_rl.common.masking" not in modules_after(["manifests", "list"], env, tmp_path)
    assert os.listdir(tmp_path / "home") == []


def test_an_error_that_is_its_own_cause(log: Path, repository: Git) -> None:
    """`raise error from error` ran for ever in the search for a git error: a patch that does not apply is one."""
    repository.run("rev-parse", "--git-dir")
    error = LockError("it does not apply")
    with pytest.raises(LockError) as raised:
        raise error from error
    assert cli._log_of(raised.value) == ""
