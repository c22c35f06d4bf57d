"""The patchset cann-recipes/bcd3be7, held against the commit it is for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patchsets.conftest import Patched
from tests.support import git

RUNNER = Path(__file__).with_name("run_node_address.py")
PIN = "bcd3be7a96fa17a5d9ca243baf37d13590714633"
FILE = "deepseek/verl_patches/workers/vllm_rollout/vllm_parallel_state.py"
IFCONFIG = """\
#!/bin/sh
[ "$1" = eth7 ] || { echo "$1: error fetching interface information: Device not found" >&2; exit 1; }
echo "eth7: flags=4163<UP,BROADCAST,RUNNING,MULTICAST>  mtu 1500"
echo "        inet 10.99.0.7  netmask 255.255.255.0  broadcast 10.99.0.255"
"""


def address(file: Path, content: bytes, interface: str) -> subprocess.CompletedProcess[str]:
    folder = file.parent
    folder.mkdir()
    file.write_bytes(content)
    (folder / "ifconfig").write_text(IFCONFIG)
    (folder / "ifconfig").chmod(0o755)
    env = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "HCCL_SOCKET_IFNAME": interface}
    return subprocess.run(
        [sys.executable, "-I", "-B", str(RUNNER), str(file)],
        env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.upstreams
def test_a_node_without_a_route_has_its_interfaces_address(
    upstreams: Path, patched: Patched, tmp_path: Path
) -> None:
    """Upstream ends with a NameError there, for want of the import."""
    content = git(
        "cat-file", "blob", f"{PIN}:{FILE}", git_dir=upstreams / "hicann+cann-recipes-train" / "repo"
    )
    upstream = content.encode() + b"\n"
    before = address(tmp_path / "before" / "state.py", upstream, "eth7")
    assert "name 're' is not defined" in before.stderr
    ours = patched("cann-recipes/bcd3be7", FILE, upstream)
    after = address(tmp_path / "after" / "state.py", ours, "eth7")
    assert (after.returncode, after.stdout) == (0, "10.99.0.7\n"), after.stderr
    # An interface that isn't there is upstream's own fallback, by the host's name.
    other = address(tmp_path / "other" / "state.py", ours, "eth9")
    assert other.returncode == 0 and other.stdout != "10.99.0.7\n", other.stderr
