"""A workspace from a manifest of its own, which lacks one of the shipped patches: the fault that it ends is back."""

from __future__ import annotations

import shutil
from pathlib import Path

from npu_rl.common.bundled import data_root
from tests.support import run_cli


def workspace_without(folder: Path, manifest: str, dropped: str, env: dict[str, str]) -> Path:
    """Lock a copy of the manifest without the patch, set it up, and return the workspace.

    Args:
        dropped: The patch as PATCHSET/NAME.
    """
    own = manifest_without(folder, manifest, dropped)
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
