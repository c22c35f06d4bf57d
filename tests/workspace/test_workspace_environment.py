"""The environment id: what is in it, where it is shown, and what `--expect env:HEX` refuses."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.errors import HostError, WorkspaceError
from npu_rl.training.host.workspace_environment import (
    WorkspaceEnvironment,
    python_version,
    require_environment,
    workspace_environment,
)
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from tests.in_process import run_here
from tests.support import assert_told
from tests.workspace.stack import Stack, look
from tests.workspace.test_expect import forge_lock, forge_receipt

PARTS = {"built", "tree", "variables", "pylock", "cann", "driver", "image"}
HOST = {
    "usr/local/Ascend/driver/version.info": "Version=25.2.0\n",
    "usr/local/Ascend/ascend-toolkit/latest/version.cfg": "toolkit_running_version=[7.7:8.2.RC1]\n",
    "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 22.04.5 LTS"\n',
    "etc/npu-rl-image": "quay.io/ascend/vllm-ascend@sha256:abc\n",
}


def host(root: Path, **changed: str) -> Path:
    for name, text in HOST.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for name, text in changed.items():
        file = next(one for one in HOST if name in one)
        (root / file).write_text(text)
    return root


def of(paths: WorkspacePaths, root: Path, version: str = "3.11") -> WorkspaceEnvironment:
    return workspace_environment(look(paths), version, root, {})


def differing(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    return [name for name in ours if ours[name]["id"] != theirs[name]["id"]]


def status(stack: Stack, paths: WorkspacePaths) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run_here(["status", "-w", paths.root, "--json"], stack.env).stdout)
    return found["environment"]  # type: ignore[no-any-return]


def test_status_shows_it_and_each_part_and_it_is_the_same_for_a_copy(
    stack: Stack, template: WorkspacePaths, paths: WorkspacePaths, incoming: WorkspacePaths
) -> None:
    found = status(stack, template)
    assert set(found["parts"]) == PARTS
    assert found["parts"]["tree"]["value"]["code"] == look(template).lock.tree
    text = run_here(["status", "-w", template.root], stack.env).stdout
    assert f"  env       {found['id']}\n" in text
    assert all(f"{name:<9} {part['id']}" in text for name, part in found["parts"].items())
    assert status(stack, paths)["id"] == found["id"]
    assert differing(found["parts"], status(stack, incoming)["parts"]) == ["tree", "variables"]


def test_files_that_differ_from_the_lock_are_another_tree(stack: Stack, paths: WorkspacePaths) -> None:
    """A run with --allow-drift records the tree that it ran."""
    clean, file = status(stack, paths), paths.code / "beta/b.py"
    found = []
    for text in ("B = 2\n", "B = 3\n", "B = 3\n"):
        file.write_text(text)
        found.append(status(stack, paths))
    assert all(differing(clean["parts"], one["parts"]) == ["tree"] for one in found)
    assert len({clean["id"], *(one["id"] for one in found)}) == 3


def test_each_part_of_a_host_changes_its_own_part(template: WorkspacePaths, tmp_path: Path) -> None:
    ours = of(template, host(tmp_path / "a")).to_json()
    assert ours["parts"]["image"]["value"] == {
        "image": "quay.io/ascend/vllm-ascend@sha256:abc",
        "system": "Ubuntu 22.04.5 LTS",
    }
    for number, (file, text, part) in enumerate(
        [
            ("version.info", "Version=25.3\n", "driver"),
            ("version.cfg", "toolkit_running_version=[7.7:8.1]\n", "cann"),
            ("os-release", "PRETTY_NAME=openEuler\n", "image"),
            ("image", "", "image"),
        ]
    ):
        theirs = of(template, host(tmp_path / str(number), **{file: text})).to_json()
        assert differing(ours["parts"], theirs["parts"]) == [part]
        assert theirs["id"] != ours["id"]


def test_the_committed_lock_of_packages_is_a_part(stack: Stack, template: WorkspacePaths) -> None:
    """Of the interpreter's version, beside the manifest."""
    assert of(template, Path("/"), "3.11").of_workspace["pylock"] is None
    lock = stack.home / f"pylock.old-py311-{platform.machine()}.toml"
    lock.write_text("lock-version = '1.0'\n")
    try:
        assert of(template, Path("/"), "3.11").of_workspace["pylock"]
        assert of(template, Path("/"), "3.10").of_workspace["pylock"] is None
    finally:
        lock.unlink()


def test_a_forged_environment_is_another_one(stack: Stack, paths: WorkspacePaths) -> None:
    """Lock and receipt fit one another, and the variables that every run gets are not those."""
    expected = status(stack, paths)["id"]
    forge_lock(paths)
    forge_receipt(paths)
    done = run_here(["verify", "-w", paths.root, "--expect", expected], stack.env)
    assert_told(done, "differs from the expected one", expected, code=3)
    done = run_here(["train", "quickstart", "--dry-run", "-w", paths.root, "--expect", expected], stack.env)
    assert_told(done, "modified   activate", code=3)  # of the lock's variables, and so proven first


def test_another_environment_is_refused_with_its_parts(template: WorkspacePaths, tmp_path: Path) -> None:
    there, here = (
        of(template, host(tmp_path / "a")),
        of(template, host(tmp_path / "b", cfg="toolkit_running_version=[7:8.1]\n")),
    )
    expected = there.to_json()["id"]
    require_environment(template, there, expected)
    with pytest.raises(WorkspaceError) as refused:
        require_environment(template, here, expected)
    assert "Here: cann " in (refused.value.why or "")


def test_the_version_of_an_interpreter_is_read_from_files(tmp_path: Path) -> None:
    """Nothing is started: the files here are empty."""
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert python_version(sys.executable) == here
    for folder, text in (
        ("venv", "home = /x\nversion = 3.10.7\n"),
        ("uv", "version_info = 3.12.1.final.0\n"),
    ):
        (tmp_path / folder / "bin").mkdir(parents=True)
        (tmp_path / folder / "bin/python").write_text("")
        (tmp_path / folder / "pyvenv.cfg").write_text(text)
    assert python_version(str(tmp_path / "venv/bin/python")) == "3.10"
    assert python_version(str(tmp_path / "uv/bin/python")) == "3.12"
    (tmp_path / "python3.11").write_text("")
    (tmp_path / "python").symlink_to("python3.11")
    assert python_version(str(tmp_path / "python")) == "3.11"
    (tmp_path / "other").write_text("")
    with pytest.raises(HostError, match="Unknown version of the interpreter"):
        python_version(str(tmp_path / "other"))
