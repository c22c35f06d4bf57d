"""An npu-smi that hangs or fails, a shell that has sourced nothing, and what a report shows of secrets."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from npu_rl.training.host.line import OK, RED
from tests.host.made_host import MadeHost

A3 = "deepseek-v3-cann-256die"


@pytest.fixture
def host(tmp_path: Path) -> MadeHost:
    return MadeHost(tmp_path, A3)


def test_an_npu_smi_that_hangs_is_given_up(host: MadeHost) -> None:
    host.npu_smi("exec sleep 600")
    started = time.monotonic()
    lines = {line.id: line for line in host.report(seconds=0.5).lines}
    assert time.monotonic() - started < 60  # not 600
    assert lines["npu-smi"].state == RED
    assert "did not end within 0.5 seconds" in lines["npu-smi"].found
    assert lines["devices"].state == OK  # by the device files


def test_an_npu_smi_that_fails_says_its_last_line(host: MadeHost) -> None:
    host.npu_smi("echo 'dcmi model initialized failed, because the device is used. ret is -8020'; exit 1")
    (line,) = [line for line in host.report().red if line.id == "npu-smi"]
    assert "it ended with 1: dcmi model initialized failed" in line.found


def test_a_shell_that_has_sourced_nothing_is_told_what_it_lacks(host: MadeHost) -> None:
    for name in ("ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "ATB_HOME_PATH", "LD_LIBRARY_PATH"):
        del host.environ[name]
    red = {line.id: line for line in host.report().red}
    assert red["set-env-cann"].fix.startswith("source /usr/local/Ascend/ascend-toolkit/set_env.sh")
    assert red["set-env-nnal"].fix.startswith("source /usr/local/Ascend/nnal/atb/set_env.sh")
    assert {"libraries"} <= set(red)


def test_a_report_shows_no_secret(host: MadeHost) -> None:
    host.environ |= {"WANDB_API_KEY": "k3y-of-someone-0815", "LD_PRELOAD": "/opt/k3y-of-someone-0815/lib.so"}
    report = host.report()
    assert "k3y-of-someone" not in report.text() + repr(report)
    assert "***" in report.text()
