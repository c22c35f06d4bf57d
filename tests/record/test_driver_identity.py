"""A driver is known by its process id and its start, from its first instruction on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from npu_rl.common.process import start_mark
from npu_rl.training.record.recorded_run import recorded_run
from npu_rl.training.record.run_record import RunRecord
from tests.training.processes import bystander


def begun(root: Path) -> RunRecord:
    record = RunRecord.create(root, "demo", {})
    record.begin_attempt(["driver"], {}, {"hostname": os.uname().nodename}, "")
    return record


def test_a_process_is_known_until_it_ends(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "600"])
    first = start_mark(process.pid)
    os.kill(process.pid, signal.SIGSTOP)
    assert first is not None
    assert start_mark(process.pid) == first
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # now it is a zombie
    assert start_mark(process.pid) is None
    process.wait()
    assert start_mark(process.pid) is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_the_start_is_that_of_proc(tmp_path: Path) -> None:
    boot, ticks = (start_mark(os.getpid()) or "").split()
    assert boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert int(ticks) == int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])


def test_a_driver_whose_environment_reads_empty_is_running(tmp_path: Path) -> None:
    """As for a moment after `exec`: it has no mark."""
    record = begun(tmp_path / "runs")
    with bystander(tmp_path / "trainer", None) as driver:
        record.attempts[-1].record_driver(driver)
        record.attempts[-1]._run_lock.close()  # its npu-rl was killed
        run = recorded_run(tmp_path / "runs", "demo")
        assert (run.state, run.processes, run.lost_npu_rl) == ("running", (driver,), True)
        assert record.processes() == [driver]
    assert recorded_run(tmp_path / "runs", "demo").state == "killed"


def test_another_process_with_its_id_is_not_the_driver(tmp_path: Path) -> None:
    attempt = begun(tmp_path / "runs").attempts[-1]
    with bystander(tmp_path / "trainer", None) as driver:
        attempt.record_driver(driver)
        file = attempt.folder / "driver.json"
        start = str(start_mark(driver))
        file.write_text(file.read_text().replace(start, f"{start}0"))  # the same id, started later
        assert (attempt.driver, attempt.live_driver) == (driver, None)


def test_the_driver_of_a_copied_record_is_not_its_own(tmp_path: Path) -> None:
    record = begun(tmp_path / "runs")
    with bystander(tmp_path / "trainer", record.mark) as driver:
        record.attempts[-1].record_driver(driver)
        subprocess.run(["cp", "-r", tmp_path / "runs" / "demo", tmp_path / "runs" / "copy"], check=True)
        assert RunRecord.load(tmp_path / "runs", "copy").live_drivers() == []
        assert RunRecord.load(tmp_path / "runs", "demo").live_drivers() == [driver]
