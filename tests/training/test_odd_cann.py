"""Nodes of a real Ray whose CANN differs: the odd one is named before the trainer starts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.training.ray_cluster import RayCluster
from tests.training.test_nodes import Run

pytest.importorskip("ray")
pytestmark = pytest.mark.rehearsal


def cann(folder: Path, version: str) -> Path:
    """Make the toolkit's folder of one CANN."""
    folder.mkdir()
    (folder / "version.cfg").write_text(f"toolkit_running_version=[7.7.0.1:{version}]\n")
    return folder


def test_the_node_with_another_cann_is_named_and_training_does_not_start(tmp_path: Path) -> None:
    """Each node's shell has sourced the set_env.sh of its own CANN."""
    if os.getuid() != 0 or subprocess.run(["unshare", "--uts", "true"], check=False).returncode:
        pytest.skip("a node with a name of its own needs a UTS namespace")
    usual, old = cann(tmp_path / "8.2", "8.2.RC1"), cann(tmp_path / "8.1", "8.1")
    named = ["unshare", "--uts", "sh", "-c", 'hostname node3; exec "$@"', "sh"]
    made = RayCluster({})
    try:
        made.head(ASCEND_HOME_PATH=str(usual))
        made.worker(before=named, ip="127.0.0.2", ASCEND_HOME_PATH=str(old))
        made.worker(ASCEND_HOME_PATH=str(usual))  # a driver joins a node with the address of the last
        run = Run(tmp_path, made)
        done = run.drive(run.told(), ASCEND_HOME_PATH=str(usual))
        assert done.returncode == 3, done.stdout + done.stderr
        assert "1 of 3 nodes differ from the record of this run" in done.stderr
        assert "node3 (127.0.0.2)" in done.stderr
        assert "node3: CANN 8.1, the other 2: 8.2.RC1" in done.stderr
        assert not (run.record / "seen.json").exists()
        assert sorted(node["stack"]["cann"] for node in run.nodes["nodes"]) == ["8.1", "8.2.RC1", "8.2.RC1"]
        (old / "version.cfg").write_text((usual / "version.cfg").read_text())
        done = run.drive(run.told(), ASCEND_HOME_PATH=str(usual))
        assert done.returncode == 0, done.stdout + done.stderr
        assert [node["problems"] for node in run.nodes["nodes"]] == [[], [], []]
    finally:
        made.stop()
