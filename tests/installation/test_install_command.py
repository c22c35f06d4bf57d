"""The one command that is printed where packages are missing."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from npu_rl.common.bundled import bundled_manifests
from npu_rl.stack.installation.move_journal import FOLDER
from npu_rl.training.run.interpreter import Interpreter, require
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from npu_rl.workspace.packages.install_command import install_command, interrupted_line


def command(folder: Path, python: str, version: str, *, managed: bool = False) -> list[str]:
    setup = {"manifest": str(bundled_manifests()["quickstart"])}
    paths = WorkspacePaths(folder / "my work")
    said = install_command(paths, setup, ">=3.11,<3.12", python, version, managed=managed)
    assert "\n" not in said
    return shlex.split(said)


def test_it_names_the_interpreter_or_an_environment_where_that_one_does_not_do(tmp_path: Path) -> None:
    start = ["npu-rl", "setup", "--manifest", "quickstart", "--workspace", f"{tmp_path}/my work", "--install"]
    assert command(tmp_path, "/opt/my python", "3.11.7") == [*start, "--python", "/opt/my python"]
    beside = ["--venv", f"{tmp_path}/my work-python"]
    assert command(tmp_path, "/usr/bin/python3", "3.12.3") == [*start, *beside]
    assert command(tmp_path, "/usr/bin/python3", "3.11.7", managed=True) == [*start, *beside]


def test_it_installs_uv_first_where_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    first = [sys.executable, "-m", "pip", "install", "--no-deps", "uv", "&&", "npu-rl"]
    assert command(tmp_path, "/opt/python", "3.11.7")[: len(first)] == first


def test_what_is_lacking_is_told_with_it() -> None:
    found = Interpreter("/opt/python", (3, 11, 7), {})
    with pytest.raises(Exception, match="lacks 1 of 1") as caught:
        require(found, ["ray==2.42.1"], npu=True, install="npu-rl setup --install --python /opt/python")
    lines = str(caught.value).splitlines()
    assert "         npu-rl setup --install --python /opt/python" in lines
    assert "pip install" not in str(caught.value)


def test_an_interrupted_installation_is_seen_through_the_interpreters_link(tmp_path: Path) -> None:
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/bin/python").write_text("")
    assert interrupted_line(None) is None
    assert interrupted_line(str(tmp_path / "env/bin/python")) is None
    (tmp_path / "env" / FOLDER).mkdir()
    (tmp_path / "env" / FOLDER / "journal.json").write_text("{}")
    said = interrupted_line(str(tmp_path / "env/bin/python"))
    assert said is not None and "setup --install finishes it" in said
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(tmp_path / "env/bin/python")
    assert interrupted_line(str(tmp_path / "bin/python")) is not None
