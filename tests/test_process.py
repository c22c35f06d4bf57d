"""A run's processes are found and ended, whatever they do; nobody else's ever are."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import psutil
import pytest

from npu_rl.common import process
from npu_rl.common.errors import HostError
from npu_rl.common.process import WorkerProcess, processes_of, run_quietly, start, stop
from tests.training.processes import (
    FORKS,
    bystander,
    environment,
    launch,
    lives,
    new_id,
    pid_of,
    wait_for,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a run's processes are found through /proc")


@pytest.fixture
def run_id() -> Iterator[str]:
    mine = new_id()
    yield mine
    for pid in processes_of(mine):
        os.kill(pid, signal.SIGKILL)


@contextmanager
def surviving_bystanders(folder: Path) -> Iterator[None]:
    """A process of another run and one of none, which have to be alive at the end."""
    with bystander(folder / "b", new_id()) as other, bystander(folder / "c", None) as none:
        yield
        assert lives(other) and lives(none)


def test_a_child_has_no_input_its_own_session_and_one_file_for_all_it_says(
    tmp_path: Path, run_id: str
) -> None:
    log = tmp_path / "driver.log"
    log.write_bytes(b"before\n")
    code = (
        "import os, sys; print(os.getcwd(), os.getsid(0) == os.getpid(), repr(sys.stdin.read()), "
        "os.environ['SPT_NOENV']); print('problem', file=sys.stderr); sys.exit(7)"
    )
    child = start([sys.executable, "-c", code], env=environment(run_id), cwd=tmp_path, output=log)
    assert child.wait(20) == 7
    assert child.poll() == 7
    assert log.read_text() == f"before\n{tmp_path} True '' 1\nproblem\n"


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(HostError, match="no-such-python can't be started"):
        start(["/no-such-python"], env=environment(run_id), cwd=tmp_path, output=tmp_path / "log")
    with pytest.raises(HostError, match="no-such-python"):
        run_quietly(["/no-such-python"], environment(None), tmp_path, 5)


def test_every_process_of_a_run_is_found_and_no_other(tmp_path: Path, run_id: str) -> None:
    child = launch(tmp_path, run_id, "worker", "daemon", "forever")
    with surviving_bystanders(tmp_path):
        members = {child.pid, pid_of(tmp_path, "worker"), pid_of(tmp_path, "daemon")}
        assert set(processes_of(run_id)) == members
    stop(child, run_id, grace=0.5)
    assert processes_of(run_id) == []


# -- stop ----------------------------------------------------------------------------------------------


def test_a_driver_that_hears_ctrl_c_ends_in_order_and_its_workers_with_it(
    tmp_path: Path, run_id: str
) -> None:
    child = launch(tmp_path, run_id, "worker", "forever")
    with surviving_bystanders(tmp_path):
        begin = time.monotonic()
        assert stop(child, run_id, grace=0.5) == []
        assert time.monotonic() - begin < 10
        assert child.poll() == 130
        assert "interrupted in order" in (tmp_path / "driver.log").read_text()
        assert not lives(pid_of(tmp_path, "worker"))


def test_what_ignores_everything_is_killed_and_named_and_others_survive(tmp_path: Path, run_id: str) -> None:
    child = launch(tmp_path, run_id, "deaf", "stubborn", "daemon", "forever")
    with surviving_bystanders(tmp_path):
        killed = stop(child, run_id, grace=0.3)
        assert set(killed) == {child.pid, pid_of(tmp_path, "stubborn")}
        assert child.poll() == -signal.SIGKILL
        assert processes_of(run_id) == []
        assert not lives(pid_of(tmp_path, "daemon"))


def test_children_of_a_driver_that_is_dead_are_ended_too(tmp_path: Path, run_id: str) -> None:
    child = launch(tmp_path, run_id, "stubborn", "worker")
    assert child.wait(20) == 0
    assert lives(pid_of(tmp_path, "stubborn"))
    assert stop(child, run_id, grace=0.2) == [pid_of(tmp_path, "stubborn")]
    assert not lives(pid_of(tmp_path, "worker"))


def stop_deaf_driver(folder: Path, run_id: str, said: SimpleQueue[int | None]) -> None:
    """Stop a driver that ignores signals; report its exit status once the waiting is interrupted."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if the tests run in the background
    child = launch(folder, run_id, "deaf", "stubborn", "forever")
    try:
        stop(child, run_id, grace=600)
    except KeyboardInterrupt:
        said.put(child.poll())


def test_a_second_ctrl_c_ends_the_waiting(tmp_path: Path, run_id: str) -> None:
    """npu-rl waits for a deaf driver; interrupted, it kills the run at once and goes on with the interruption."""
    said = FORKS.SimpleQueue()
    launcher = FORKS.Process(target=stop_deaf_driver, args=(tmp_path / "run", run_id, said))
    launcher.start()
    wait_for((tmp_path / "run" / "heard.pid").exists, "the first SIGINT")
    assert launcher.pid is not None
    os.kill(launcher.pid, signal.SIGINT)
    launcher.join(20)
    assert launcher.exitcode == 0
    assert said.get() == -signal.SIGKILL
    assert processes_of(run_id) == []


def test_a_pid_that_is_no_longer_the_runs_gets_no_signal(tmp_path: Path, run_id: str) -> None:
    """The number was listed, its process ended, and the system gave it to another."""
    child = launch(tmp_path / "run", run_id, "worker", "forever")
    worker = pid_of(tmp_path / "run", "worker")
    with bystander(tmp_path, None) as other:
        assert process._signal_all(child, [other], run_id, signal.SIGKILL) == []
        assert lives(other)
        assert process._signal_all(child, [worker, other], run_id, signal.SIGKILL) == [worker]
        wait_for(lambda: not lives(worker), "the worker's end")
        assert lives(other)
    wait_for(lambda: not Path(f"/proc/{other}").exists(), "the bystander's end")
    assert process._signal_all(child, [other], run_id, signal.SIGKILL) == []
    assert stop(child, run_id) == []


# -- run_quietly ---------------------------------------------------------------------------------------


def test_a_probe_that_hangs_is_killed_with_its_children_and_named(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time; p = subprocess.Popen(['sleep', '600']); "
        "open('pid', 'w').write(str(p.pid)); print('thinking', file=sys.stderr, flush=True); time.sleep(600)"
    )
    argv = [sys.executable, "-c", code]
    with pytest.raises(HostError, match=r"did not end within 1\.5 seconds") as caught:
        run_quietly(argv, environment(None), tmp_path, 1.5)
    assert sys.executable in str(caught.value)
    assert "thinking" in str(caught.value)
    wait_for(lambda: not lives(int((tmp_path / "pid").read_text())), "the end of the probe's child")


def test_a_worker_is_killed_with_its_processes() -> None:
    reads = WorkerProcess(["cat"], os.environ)
    reads.send("a")
    assert reads.receive() == "a\n"
    reads.kill()
    assert reads.last_words() == "signal 9"
    reads.close()
    forks = WorkerProcess(["sh", "-c", "sleep 600 & echo $!; wait"], os.environ)
    child = psutil.Process(int(forks.receive() or 0))
    forks.kill()
    forks.close()
    assert psutil.wait_procs([child], timeout=20)[1] == []
