"""Several commands at the same time: in one workspace, and from one store."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from filelock import FileLock

from npu_rl.common.errors import WorkspaceError
from npu_rl.workspace.folder.workspace_lock import exclusive, settled
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from tests.workspace.stack import Stack, found, leftovers, look


def at_once(stack: Stack, manifests: Sequence[Path], workspaces: Sequence[Path], store: Path) -> list[str]:
    """Setups that begin at the same time, none of which has imports to make; their output, once all have succeeded."""
    with ThreadPoolExecutor(len(manifests)) as pool:
        ended = list(
            pool.map(lambda m, w: stack.setup(w, m, env={"NPU_RL_STORE": str(store)}), manifests, workspaces)
        )
    assert [done.stderr for done in ended if done.returncode] == []
    return [done.stdout for done in ended]


def all_well(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Their output, once all of them have succeeded."""
    outputs = []
    for process in processes:
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        outputs.append(output)
    return outputs


def test_the_same_lock_in_one_workspace(stack: Stack, tmp_path: Path) -> None:
    for attempt in range(2):
        workspace, store = tmp_path / f"w{attempt}", tmp_path / f"store{attempt}"
        outputs = at_once(stack, [stack.old] * 4, [workspace] * 4, store)
        assert sum("is ready" in output for output in outputs) == 1
        assert sum("nothing to do" in output for output in outputs) == 3
        assert found(WorkspacePaths(workspace), deep=True) == []
        assert leftovers(workspace) == leftovers(store) == []


def test_two_workspaces_from_one_store(stack: Stack, tmp_path: Path) -> None:
    for attempt in range(2):
        store = tmp_path / f"store{attempt}"
        places = [tmp_path / f"w{attempt}.{number}" for number in range(4)]
        at_once(stack, [stack.old] * 4, places, store)
        for place in places:
            assert found(WorkspacePaths(place), deep=True) == []
            assert leftovers(place) == []
        assert leftovers(store) == []


@pytest.mark.second
def test_gc_beside_setups(stack: Stack, tmp_path: Path) -> None:
    store = {"NPU_RL_STORE": str(tmp_path / "store")}
    for attempt in range(3):
        setups = [
            stack.start("setup", "-m", stack.old, "-w", tmp_path / f"w{attempt}.{n}", **store)
            for n in range(2)
        ]
        while any(process.poll() is None for process in setups):
            done = stack.run("store", "gc", "--days", "0", env=store)
            assert done.returncode == 0 or "is using the store" in done.stderr, done.stderr
        all_well(setups)


def test_a_workspace_that_is_held_is_waited_for(stack: Stack, paths: WorkspacePaths, tmp_path: Path) -> None:
    with FileLock(str(paths.hidden / "busy.lock")):
        process = stack.start(
            "setup", "-m", stack.new, "-w", paths.root, NPU_RL_STORE=str(tmp_path / "store")
        )
        assert process.stderr is not None
        assert "Another npu-rl command is using" in process.stderr.readline()
        assert process.poll() is None
        assert look(paths).lock.manifest == "old"
    all_well([process])
    assert look(paths).lock.manifest == "new"


@pytest.mark.parametrize("hold", [exclusive, settled])
def test_waiting_has_an_end(paths: WorkspacePaths, hold: Callable[..., AbstractContextManager[None]]) -> None:
    """And a command that only looks makes no file to wait by."""
    told: list[str] = []
    busy = paths.hidden / "busy.lock"
    with FileLock(str(busy)), pytest.raises(WorkspaceError, match="is using this workspace"):
        with hold(paths, told.append, wait=0.1):
            pass
    busy.unlink()
    with hold(paths, told.append, wait=0.1):
        assert busy.exists() == (hold is exclusive)
    assert len(told) == 1


def test_a_first_setup_that_is_refused_takes_nothing_from_one_that_waits(
    stack: Stack, tmp_path: Path
) -> None:
    """It removes its folders, and with them the file by which the other one waits."""
    paths = WorkspacePaths(tmp_path / "new/w")
    with pytest.raises(RuntimeError):
        with exclusive(paths, print):
            command, store = ("setup", "-m", stack.old, "-w", paths.root), str(tmp_path / "store")
            processes = [stack.start(*command, NPU_RL_STORE=store) for _ in range(2)]
            for process in processes:
                assert process.stderr is not None
                assert "Another npu-rl command is using" in process.stderr.readline()
            raise RuntimeError
    outputs = all_well(processes)
    assert sum("is ready" in output for output in outputs) == 1
    assert found(paths, deep=True) == []


def test_what_was_there_before_a_refused_setup_stays(tmp_path: Path) -> None:
    for made in ("", "w", "w/.npu-rl", "w/.npu-rl/mine"):
        paths = WorkspacePaths(tmp_path / f"home of {made.replace('/', '-')}" / "w")
        (paths.root.parent / made).mkdir(parents=True)
        before = sorted(str(p) for p in paths.root.parent.rglob("*"))
        with pytest.raises(RuntimeError):
            with exclusive(paths, print):
                raise RuntimeError
        after = sorted(str(p) for p in paths.root.parent.rglob("*") if p.name != "busy.lock")
        assert after == before
