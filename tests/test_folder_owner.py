"""Folders of another user: refused by name, unless they are listed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from npu_rl.common.errors import HostError
from npu_rl.common.folder_owner import require_own
from tests.support import assert_told, clean_env, run_cli

NOBODY = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NPU_RL_CONFIG", str(tmp_path / "config.yaml"))
    monkeypatch.delenv("SUDO_UID", raising=False)
    (tmp_path / "there/part").mkdir(parents=True)
    return tmp_path / "there"


def test_ones_own_and_a_missing_one_are_taken(folder: Path) -> None:
    require_own("port", folder, folder / "part", folder / "missing")


@pytest.mark.parametrize("part", ["", "part"])
def test_another_users_is_refused(folder: Path, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(folder / part, NOBODY, NOBODY)
    with pytest.raises(HostError) as refused:
        require_own("port", folder, folder / "part", hint="Choose another: --folder DIR")
    assert f"The port {folder} belongs to another user" in str(refused.value)
    assert "--folder DIR" in str(refused.value)
    Path(os.environ["NPU_RL_CONFIG"]).write_text(str(refused.value).splitlines()[-1].strip())
    require_own("port", folder, folder / "part")
    Path(os.environ["NPU_RL_CONFIG"]).unlink()
    monkeypatch.setenv("SUDO_UID", str(NOBODY))
    require_own("port", folder, folder / "part")


def test_packages_go_into_no_environment_of_another_user(folder: Path) -> None:
    os.chown(folder, NOBODY, NOBODY)
    done = run_cli(["setup", "-m", "quickstart", "--install", "--venv", folder], clean_env(folder.parent))
    assert_told(done, f"The environment {folder} belongs to another user", code=3)
