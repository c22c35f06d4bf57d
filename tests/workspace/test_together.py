"""Several commands at the same time: in one workspace, and from one store."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from filelock import FileLock

from npu_rl.errors import WorkspaceError
from npu_rl.workspace.layout import Layout, exclusive
from tests.workspace.stack import Stack, found, leftovers, look


def start(stack: Stack, manifest: Path, workspace: Path, store: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "npu_rl", "setup", "-m", str(manifest), "-w", str(workspace), *options],
        env={**stack.env, "NPU_RL_STORE": str(store)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def all_well(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Their output, once all of them have succeeded."""
    outputs = []
    for process in processes:
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        outputs.append(output)
    return outputs


def test_the_same_lock_in_one_workspace(stack: Stack, tmp_path: Path) -> None:
    for attempt in range(3):
        workspace, store = tmp_path / f"w{attempt}", tmp_path / f"store{attempt}"
        outputs = all_well([start(stack, stack.old, workspace, store) for _ in range(4)])
        assert sum("is ready" in output for output in outputs) == 1
        assert sum("nothing to do" in output for output in outputs) == 3
        assert found(Layout(workspace), deep=True) == []
        assert leftovers(workspace) == leftovers(store) == []


def test_different_locks_in_one_workspace(stack: Stack, tmp_path: Path) -> None:
    for attempt in range(3):
        workspace, store = tmp_path / f"w{attempt}", tmp_path / f"store{attempt}"
        all_well([start(stack, manifest, workspace, store) for manifest in (stack.old, stack.new) * 2])
        layout = Layout(workspace)
        assert found(layout, deep=True) == []
        assert look(layout).lock.manifest in ("old", "new")
        assert leftovers(workspace) == leftovers(store) == []


def test_different_locks_over_an_old_workspace(stack: Stack, layout: Layout, tmp_path: Path) -> None:
    all_well([start(stack, m, layout.root, tmp_path / "store") for m in (stack.new, stack.old, stack.new)])
    assert found(layout, deep=True) == []
    assert leftovers(layout.root) == []
    assert not layout.kept.exists()


def test_two_workspaces_from_one_store(stack: Stack, tmp_path: Path) -> None:
    for attempt in range(3):
        store = tmp_path / f"store{attempt}"
        places = [tmp_path / f"w{attempt}.{number}" for number in range(4)]
        all_well([start(stack, stack.old, place, store) for place in places])
        for place in places:
            assert found(Layout(place), deep=True) == []
            assert leftovers(place) == []
        assert leftovers(store) == []


def test_a_workspace_that_is_held_is_waited_for(stack: Stack, layout: Layout, tmp_path: Path) -> None:
    with FileLock(str(layout.hidden / "busy.lock")):
        process = start(stack, stack.new, layout.root, tmp_path / "store")
        assert process.stderr is not None
        assert "Another npu-rl command is working" in process.stderr.readline()
        assert process.poll() is None
        assert look(layout).lock.manifest == "old"
    all_well([process])
    assert look(layout).lock.manifest == "new"


def test_waiting_has_an_end(layout: Layout) -> None:
    told: list[str] = []
    with FileLock(str(layout.hidden / "busy.lock")):
        with pytest.raises(WorkspaceError, match="is working in this workspace"):
            with exclusive(layout, told.append, wait=0.1):
                pass
    assert len(told) == 1
    with exclusive(layout, told.append, wait=0.1):
        assert len(told) == 1
