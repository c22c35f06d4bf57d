"""One stack for all tests of workspaces: making it costs more than any of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from tests.workspace.stack import Stack, build


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Stack:
    return build(tmp_path_factory.mktemp("stack"))


@pytest.fixture(scope="session")
def template(stack: Stack) -> WorkspacePaths:
    """A workspace of the old lock that nobody may change."""
    return stack.make(stack.home / "template")


@pytest.fixture(scope="session")
def incoming(stack: Stack) -> WorkspacePaths:
    """A workspace of the new lock that nobody may change."""
    return stack.make(stack.home / "incoming", stack.new)


@pytest.fixture
def paths(template: WorkspacePaths, tmp_path: Path) -> WorkspacePaths:
    """A workspace of the old lock: a copy of one, times included, which is faster than a setup."""
    shutil.copytree(template.root, tmp_path / "w", symlinks=True)
    return WorkspacePaths(tmp_path / "w")
