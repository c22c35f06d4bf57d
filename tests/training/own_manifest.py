"""Workspaces from manifests of their own, in which one fault is: a patch is missing, or the weight sync is wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

from npu_rl.common.bundled import data_root
from tests.support import run_cli


def workspace_without(folder: Path, manifest: str, dropped: str, env: dict[str, str]) -> Path:
    """Lock a copy of the manifest without a shipped patch, set it up, and return the workspace.

    Args:
        dropped: The patch as PATCHSET/NAME.
    """
    return _set_up(folder, manifest_without(folder, manifest, dropped), env)


def workspace_with_fault(folder: Path, manifest: str, fault: str, env: dict[str, str]) -> Path:
    """Do the same with a copy of the manifest that puts a fault on the way of the weights.

    Args:
        fault: A value of NPU_RL_SYNC_FAULT.
    """
    own = folder / f"{manifest}.yaml"
    text = (data_root() / "manifests" / own.name).read_text()
    assert text.count("\nenv:\n") == 1
    own.write_text(text.replace("\nenv:\n", f'\nenv:\n  NPU_RL_SYNC_FAULT: "{fault}"\n'))
    return _set_up(folder, own, env)


def _set_up(folder: Path, own: Path, env: dict[str, str]) -> Path:
    for command in (["lock", "--manifest", own], ["setup", "--manifest", own, "-w", folder / "ws"]):
        done = run_cli(command, env, timeout=600)
        assert done.returncode == 0, done.stderr
    return folder / "ws"


def manifest_without(folder: Path, manifest: str, dropped: str) -> Path:
    """Return a copy of the manifest, with a copy of the patchset that lacks the patch.

    Later patches of a file may then lie some lines off.
    """
    patchset, _, name = dropped.rpartition("/")
    shutil.copytree(data_root() / "patchsets" / patchset, folder / "mine")
    (folder / "mine" / f"{name}.patch").unlink()
    series = folder / "mine" / "series"
    series.write_text(series.read_text().replace(f"{name}.patch\n", ""))
    text = (data_root() / "manifests" / f"{manifest}.yaml").read_text()
    before = f"patches: [{patchset}]"
    assert text.count(before) == 1
    own = folder / f"{manifest}.yaml"
    own.write_text(text.replace(before, "patches: [{path: ./mine, offset: allow}]"))
    return own
