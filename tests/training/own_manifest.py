"""Workspaces from manifests of their own with one fault: a patch is missing, the weight sync or a formula is wrong."""

from __future__ import annotations

import difflib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import yaml

from npu_rl.common.bundled import data_root
from tests.support import run_cli

Edit = tuple[str, str, str]
"""File of the tree, its text, and the text in its place."""


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


def workspace_with_edit(
    folder: Path, manifest: str, component: str, code: Path, edit: Edit, env: dict[str, str]
) -> Path:
    """Do the same with a manifest that extends it by one patch: a mistake in the tree's code.

    Args:
        code: The code of a workspace of the manifest.
    """
    file, before, after = edit
    text = (code / file).read_text()
    assert text.count(before) == 1, (file, before)
    lines = (text.splitlines(keepends=True), text.replace(before, after).splitlines(keepends=True))
    diff = "".join(difflib.unified_diff(*lines, f"a/{file}", f"b/{file}"))
    patchset = folder / "mistakes"
    patchset.mkdir()
    (patchset / "series").write_text("0001-mistake.patch\n")
    (patchset / "0001-mistake.patch").write_text(
        f"Subject: [PATCH] Mistake\n---\ndiff --git a/{file} b/{file}\n{diff}"
    )
    shipped = yaml.safe_load((data_root() / "manifests" / f"{manifest}.yaml").read_text())
    patches = [*shipped["components"][component].get("patches", []), {"path": "./mistakes"}]
    own = {
        **{key: shipped[key] for key in ("schema", "title", "device")},
        **{"name": "mistaken", "extends": manifest, "components": {component: {"patches": patches}}},
    }
    (folder / "mistaken.yaml").write_text(yaml.safe_dump(own))
    return _set_up(folder, folder / "mistaken.yaml", env)


def _set_up(folder: Path, own: Path, env: dict[str, str]) -> Path:
    for command in (["lock", "--manifest", own], ["setup", "--manifest", own, "-w", folder / "ws"]):
        done = run_cli(command, env, timeout=600)
        assert done.returncode == 0, done.stderr
    return folder / "ws"


def manifest_without(folder: Path, manifest: str, dropped: str) -> Path:
    """Return a copy of the manifest, with a copy of the patchset that lacks the patch.

    Hunks of later patches of a file are renumbered by the lines that are missing or left then.
    """
    patchset, _, name = dropped.rpartition("/")
    mine = folder / "mine"
    shutil.copytree(data_root() / "patchsets" / patchset, mine)
    before, _, after = (mine / "series").read_text().partition(f"{name}.patch\n")
    (mine / "series").write_text(before + after)
    added = list(_added_lines((mine / f"{name}.patch").read_text()))
    (mine / f"{name}.patch").unlink()
    for later in after.split():
        (mine / later).write_text(_renumbered((mine / later).read_text(), added))
    text = (data_root() / "manifests" / f"{manifest}.yaml").read_text()
    shipped = f"patches: [{patchset}]"
    assert text.count(shipped) == 1
    own = folder / f"{manifest}.yaml"
    own.write_text(text.replace(shipped, "patches: [{path: ./mine}]"))
    return own


_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def _added_lines(patch: str) -> Iterator[tuple[str, int, int]]:
    """Yield of each hunk the file, its first line in the patched one, and how many lines it adds there."""
    file = ""
    for line in patch.splitlines():
        if line.startswith("+++ "):
            file = line
        elif hunk := _HUNK.match(line):
            yield file, int(hunk[3]), int(hunk[4] or 1) - int(hunk[2] or 1)


def _renumbered(patch: str, added: list[tuple[str, int, int]]) -> str:
    lines, file = [], ""
    for line in patch.splitlines(keepends=True):
        if line.startswith("+++ "):
            file = line.rstrip()
        elif hunk := _HUNK.match(line):
            old, less = int(hunk[1]), sum(more for of, at, more in added if of == file and at < int(hunk[1]))
            numbers = f"@@ -{old - less},{hunk[2] or 1} +{int(hunk[3]) - less},{hunk[4] or 1} @@"
            line = numbers + line[hunk.end() :]
        lines.append(line)
    return "".join(lines)
