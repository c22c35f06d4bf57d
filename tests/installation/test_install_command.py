"""The one command that is printed where packages are missing."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from npu_rl.common.bundled import bundled_manifests
from npu_rl.training.run.host_check import examine
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from npu_rl.workspace.packages.install_command import InstallPython, install_command, keep_bundle

SETUP = {"manifest": str(bundled_manifests()["quickstart"]), "lock": "1" * 64}


def test_it_names_the_interpreter_or_an_environment_where_that_one_does_not_do(tmp_path: Path) -> None:
    def said(python: str, version: str, *, managed: bool = False) -> list[str]:
        into = InstallPython(python, version, ">=3.11,<3.12", managed=managed)
        return shlex.split(install_command(WorkspacePaths(tmp_path / "my work"), SETUP, into))

    start = ["npu-rl", "setup", "--manifest", "quickstart", "--workspace", f"{tmp_path}/my work", "--install"]
    assert said("/opt/my python", "3.11.7") == [*start, "--python", "/opt/my python"]
    beside = ["--venv", f"{tmp_path}/my work-python"]
    assert said("/usr/bin/python3", "3.12.3") == [*start, *beside]
    assert said("/usr/bin/python3", "3.11.7", managed=True) == [*start, *beside]


def test_before_there_is_a_workspace_doctor_prints_the_command_that_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report = examine("pai-megatron-deepseek-v3", None, None)
    fixes = {line.id: line.fix for line in report.lines}
    fits = sys.version_info[:2] == (3, 12)
    where = f"--python {sys.executable}" if fits else f"--venv {tmp_path}/npu-rl-workspace-python"
    assert fixes["requirements"] == f"npu-rl setup --manifest pai-megatron-deepseek-v3 --install {where}"


def test_of_a_workspace_from_a_bundle_it_names_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    paths, bundle = WorkspacePaths(tmp_path / "work"), tmp_path / "my bundle.tar"
    paths.root.mkdir()
    bundle.write_text("")

    def named() -> bool:
        return f"--bundle '{bundle}' --install" in install_command(paths, SETUP, InstallPython("/p", "3.11"))

    keep_bundle(paths, bundle, "1" * 64)
    assert named()
    keep_bundle(paths, bundle, "2" * 64)  # of another lock
    assert not named()
    keep_bundle(paths, bundle, "1" * 64)
    bundle.unlink()
    assert not named()
