"""A Ray that was started beforehand, by `ray start`, as an operator does; nothing of it is left afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

MARK = "TEST_RAY_CLUSTER"  # no NPU_RL_ variable: those of a cluster's shell are taken from a run's workers


class RayCluster:
    """Nodes on this machine, each a raylet. env: what the operator's shell has, and nothing else."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="nrlt-", dir="/tmp"))  # sockets lie in it: a short path
        self._id = uuid.uuid4().hex
        self.mark = {MARK: self._id}  # a process that has it ends with the cluster
        self._env = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.folder),
            "RAY_TMPDIR": str(self.folder),
            "SPT_NOENV": "1",  # setproctitle would write over MARK
            **self.mark,
            **env,
        }
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"

    def start(self, command: Sequence[str | Path], **env: str) -> str:
        """Run a command that starts a node; what it says. env: on top of the operator's."""
        done = subprocess.run(
            list(map(str, command)), env={**self._env, **env}, cwd="/", stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout

    def head(self, python: str = sys.executable, **env: str) -> str:
        where = ["--head", "--node-ip-address=127.0.0.1", f"--port={self.port}", "--include-dashboard=false"]
        return self.start(node_command(python, where), **env)

    def worker(
        self, python: str = sys.executable, before: Sequence[str] = (), ip: str = "127.0.0.1", **env: str
    ) -> str:
        """ip: a driver on this machine joins any of the nodes at 127.0.0.1."""
        where = [f"--address={self.address}", f"--node-ip-address={ip}"]
        return self.start([*before, *node_command(python, where)], **env)

    def processes(self) -> list[int]:
        mark = f"{MARK}={self._id}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found

    def stop(self) -> None:
        deadline = time.monotonic() + 20
        while pids := self.processes():
            assert time.monotonic() < deadline, f"{pids} live on"
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            os.sched_yield()
        shutil.rmtree(self.folder, ignore_errors=True)


def node_command(python: str, where: Sequence[str]) -> list[str]:
    offers = ["--num-cpus=4", "--num-gpus=0", '--resources={"NPU": 1}', "--object-store-memory=100000000"]
    return [python, "-m", "ray.scripts.scripts", "start", *where, *offers, "--disable-usage-stats"]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
