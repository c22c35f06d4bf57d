"""Which workspace a command takes: the named one, or one that is found and belongs to this user."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from npu_rl.workspace.folder.workspace_paths import DEFAULT_NAME, WorkspacePaths
from tests.support import assert_told
from tests.workspace.stack import Stack, unchanged

NOBODY = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
COMMANDS = (
    ["verify"], ["status"], ["diff"], ["plan", "quickstart"], ["recipes", "check", "quickstart"],
    ["train", "quickstart", "--dry-run"],
)  # fmt: skip


def give(paths: WorkspacePaths, user: int = NOBODY) -> WorkspacePaths:
    for path in (paths.root, *paths.root.rglob("*")):
        os.chown(path, user, user, follow_symlinks=False)
    return paths


@pytest.fixture
def below(paths: WorkspacePaths) -> Path:
    """A folder of this user in a folder that somebody else owns, and has made a workspace of."""
    give(paths)
    project = paths.root / "my/project"
    project.mkdir(parents=True)
    return project


def ask(
    stack: Stack, where: Path, *words: str | Path, config: str = "", env: Mapping[str, str] | None = None
):  # type: ignore[no-untyped-def]
    path = stack.home / "config-of-discovery.yaml"
    path.write_text(config)
    return stack.run(*words, cwd=where, env={"NPU_RL_CONFIG": str(path), **(env or {})})


@AS_ROOT
def test_a_workspace_of_another_user_is_not_taken(stack: Stack, paths: WorkspacePaths, below: Path) -> None:
    refused = (f"The workspace {paths.root} belongs to another user", f"(uid {NOBODY})")
    ways_out = (f"--workspace {paths.root}\n", f'safe_folders: ["{paths.root}"]')
    with unchanged(paths.root):
        for command in COMMANDS:
            assert_told(ask(stack, below, *command), *refused, *ways_out, code=3)


@AS_ROOT
def test_the_ways_out_that_the_error_names(stack: Stack, paths: WorkspacePaths, below: Path) -> None:
    line = ask(stack, below, "status").stderr.splitlines()[-1].strip()
    link = paths.root.parent / "link"
    link.symlink_to(paths.root)
    for config in (line, "safe_folders: '*'", "safe_folders: ['*']", f"safe_folders: [{link}]"):
        assert ask(stack, below, "status", config=config).returncode == 0
    assert ask(stack, link / "my", "status", config=line).returncode == 0
    assert ask(stack, below, "status", "--workspace", paths.root).returncode == 0
    other = ask(stack, below, "status", config="safe_folders: [/elsewhere]")
    assert_told(other, f'safe_folders: ["/elsewhere", "{paths.root}"]', code=3)


def test_ones_own_is_found_above_and_below(stack: Stack, paths: WorkspacePaths, tmp_path: Path) -> None:
    assert ask(stack, paths.code / "beta", "status").returncode == 0
    paths.root.rename(tmp_path / DEFAULT_NAME)
    assert ask(stack, tmp_path, "status").returncode == 0


def test_a_configuration_that_is_wrong_is_told(stack: Stack, tmp_path: Path) -> None:
    for config in ("safe_folders: 3", "safe_folders: [relative]", "safe_folders: [1]", "safe: []"):
        done = ask(stack, tmp_path, "setup", "-m", stack.old, "-w", tmp_path / "w", config=config)
        assert_told(done, "The configuration file is not valid", "safe_folders", code=2)


def test_setup_makes_no_workspace_in_another(stack: Stack, paths: WorkspacePaths) -> None:
    """After `cd code` and a commit, it wrote a second workspace into the code, as untracked files."""
    for here in (paths.root, paths.code / "alpha"):
        with unchanged(paths.root):
            done = ask(stack, here, "setup", "-m", stack.home / "old.yaml")
            words = (f"This folder is in the workspace {paths.root}", f"--workspace {paths.root}\n")
            assert_told(done, *words, f"cd {paths.root.parent}\n", code=2)


def test_setup_from_within_the_code_it_replaces(stack: Stack, paths: WorkspacePaths) -> None:
    """`..` on the way led through the folder that setup moves away: it stopped in the middle."""
    done = ask(stack, paths.code, "setup", "-m", stack.home / "new.yaml", "-w", "..")
    assert done.returncode == 0, done.stderr
    assert f"note: setup has replaced this folder; enter it again: cd {paths.code}\n" in done.stderr
    assert ask(stack, paths.code, "verify").returncode == 0
