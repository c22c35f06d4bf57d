"""Real processes for the tests of this room, and nothing of them left afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

from npu_rl.common.process import RUN_VARIABLE, Child, start

TRAINER = Path(__file__).with_name("fake_trainer.py")
FORKS = get_context("forkserver")
"""Starts module-level functions in processes of their own, for a tenth of what a start of Python costs."""
FORKS.set_forkserver_preload(["tests.training.fake_run"])


def wait_for(condition: Callable[[], object], what: str = "it", seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds:g} s"
        time.sleep(0.01)


def lives(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def left_of(run: Path) -> list[str]:
    """What a run has left: its processes, by the folder of usage that they inherit, and its temporary folders."""
    usage = f"NPU_RL_USAGE={run}/attempts/".encode()
    pids = [
        path.name
        for path in Path("/proc").glob("[0-9]*")
        if usage in _environ(path) and lives(int(path.name))
    ]
    records = [json.loads(path.read_text()) for path in run.glob("attempts/*/environment.json")]
    folders = [json.loads(one["NPU_RL_RAY"]).get("_temp_dir", "") for one in records if "NPU_RL_RAY" in one]
    return pids + [folder for folder in folders if folder and Path(folder).exists()]


def _environ(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


def environment(run_id: str | None) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if name != RUN_VARIABLE}
    env["PYTHONUNBUFFERED"] = "1"
    if run_id is not None:
        env[RUN_VARIABLE] = run_id
    return env


def launch(folder: Path, run_id: str, *options: str) -> Child:
    """The fake trainer, ready."""
    folder.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, str(TRAINER), str(folder), *options]
    child = start(argv, env=environment(run_id), cwd=folder, output=folder / "driver.log")
    wait_for(lambda: (folder / "driver.pid").exists() or child.poll() is not None, "the trainer's start")
    return child


def pid_of(folder: Path, name: str) -> int:
    return int((folder / f"{name}.pid").read_text())


@contextmanager
def bystander(folder: Path, run_id: str | None) -> Iterator[int]:
    """A process that is none of ours, of another run or of none; it deals with signals as `sleep` does."""
    folder.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(["sleep", "600"], env=environment(run_id), cwd=folder, start_new_session=True)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def new_id() -> str:
    return uuid.uuid4().hex
