"""Nodes of a real Ray with another CANN and with other code: each is named before the trainer starts."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.training.ray_cluster import RayCluster
from tests.training.test_nodes import Run

pytest.importorskip("ray")
pytestmark = pytest.mark.rehearsal

AS_NODE3 = ["unshare", "--uts", "sh", "-c", 'hostname node3; exec "$@"', "sh"]
WITH_ITS_COPY = ["unshare", "-m", "sh", "-c", 'mount --bind "$1" "$2"; shift 2; exec "$@"', "sh"]


def cann(folder: Path, version: str) -> Path:
    """Make the toolkit's folder of one CANN."""
    folder.mkdir()
    (folder / "version.cfg").write_text(f"toolkit_running_version=[7.7.0.1:{version}]\n")
    return folder


def test_nodes_with_another_cann_or_other_code_are_named_and_training_does_not_start(tmp_path: Path) -> None:
    """Each node's shell has sourced the set_env.sh of its CANN; one has a copy of the code at the same path."""
    if os.getuid() != 0 or subprocess.run(["unshare", "--uts", "-m", "true"], check=False).returncode:
        pytest.skip("a node with a name and file systems of its own needs namespaces")
    usual, old = cann(tmp_path / "8.2", "8.2.RC1"), cann(tmp_path / "8.1", "8.1")
    made = RayCluster({})
    try:
        run, copy = Run(tmp_path, made), tmp_path / "copy"
        (run.code / "a_trainer.py").write_text("open('seen.json', 'w').close()\n")
        shutil.copytree(run.code, copy)
        (copy / "package" / "module.py").write_text("NAME = 'modulE'\n")
        made.head(ASCEND_HOME_PATH=str(usual))
        made.worker(before=AS_NODE3, ip="127.0.0.2", ASCEND_HOME_PATH=str(old))
        made.worker(
            before=[*WITH_ITS_COPY, str(copy), str(run.code)], ip="127.0.0.3", ASCEND_HOME_PATH=str(usual)
        )
        made.worker(ASCEND_HOME_PATH=str(usual))  # a driver joins a node with the address of the last
        done = run.drive(run.told(), ASCEND_HOME_PATH=str(usual))
        assert done.returncode == 3, done.stdout + done.stderr
        assert "2 of 4 nodes differ from the record of this run" in done.stderr
        assert "node3 (127.0.0.2)" in done.stderr and "(127.0.0.3)" in done.stderr
        assert "node3: CANN 8.1, the other 3: 8.2.RC1" in done.stderr
        assert "differing: package/module.py" in done.stderr and "npu-rl verify --deep" in done.stderr
        assert not (run.record / "seen.json").exists()
        (old / "version.cfg").write_text((usual / "version.cfg").read_text())
        (copy / "package" / "module.py").write_text((run.code / "package" / "module.py").read_text())
        done = run.drive(run.told(), ASCEND_HOME_PATH=str(usual))
        assert done.returncode == 0, done.stdout + done.stderr
        assert [node["problems"] for node in run.nodes["nodes"]] == [[]] * 4
    finally:
        made.stop()
