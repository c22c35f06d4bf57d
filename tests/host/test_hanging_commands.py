"""Vendors' commands that hang, read, exit or print without end; and what a report shows of secrets."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from npu_rl.training.host.bounded_command import run_bounded
from npu_rl.training.host.line import OK, RED
from tests.host.made_host import ASCEND, MadeHost

A3 = "deepseek-v3-cann-256die"
CANN = f"{ASCEND}/ascend-toolkit/set_env.sh"


@pytest.fixture
def host(tmp_path: Path) -> MadeHost:
    return MadeHost(tmp_path, A3)


def test_an_npu_smi_that_hangs_is_given_up(host: MadeHost) -> None:
    host.npu_smi("exec sleep 600")
    started = time.monotonic()
    lines = {line.id: line for line in host.report(smi_seconds=0.5).lines}
    assert time.monotonic() - started < 60  # not 600
    assert lines["npu-smi"].state == RED
    assert "did not end within 0.5 seconds" in lines["npu-smi"].found
    assert lines["devices"].state == OK  # by the device files


def test_nothing_that_a_command_started_stays(host: MadeHost) -> None:
    host.npu_smi(f"sleep 600 & echo $! > {host.root}/pid; exec cat $0.txt")
    assert {line.id: line for line in host.report().lines}["npu-smi"].state == OK
    pid = int((host.root / "pid").read_text())
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] in "ZX"


def test_an_npu_smi_that_fails_says_its_last_line(host: MadeHost) -> None:
    host.npu_smi("echo 'dcmi model initialized failed, because the device is used. ret is -8020'; exit 1")
    (line,) = [line for line in host.report().red if line.id == "npu-smi"]
    assert "it ended with 1: dcmi model initialized failed" in line.found


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("exit 3", "it ended the shell that sourced it (exit status 3)"),
        ("sleep 600", "did not end within"),
        ("exec >&3; yes 0123456789", "it printed more than"),
    ],
)
@pytest.mark.second
def test_a_set_env_that_exits_hangs_or_floods_is_red(host: MadeHost, script: str, found: str) -> None:
    host.replace(CANN, "export ASCEND_HOME_PATH", f"{script}\nexport ASCEND_HOME_PATH")
    (line,) = [line for line in host.report(smi_seconds=3).red if line.id == "set-env-cann"]
    assert found in line.found


@pytest.mark.parametrize(
    "script",
    [
        'read -r answer; test -z "$answer"',
        "head -c 1G /dev/zero; head -c 1G /dev/zero >&2",
        "set -- a b; test $# = 2",
        "unset PATH; PATH=/usr/bin:/bin",
        "sleep 600 & while sleep 60; do :; done &",
    ],
)
def test_a_set_env_that_asks_prints_a_gigabyte_or_leaves_a_process_is_sourced_all_the_same(
    host: MadeHost, script: str
) -> None:
    host.replace(CANN, "export ASCEND_HOME_PATH", f"{script}\nexport ASCEND_HOME_PATH")
    lines = {line.id: line for line in host.report(smi_seconds=30).lines}
    assert "is sourced" in lines["set-env-cann"].found or "lacks PATH" in lines["set-env-cann"].found


def test_the_environment_of_bash_is_not_run(host: MadeHost) -> None:
    host.write("evil.sh", f"touch {host.root}/touched\n")
    host.environ["BASH_ENV"] = host.environ["ENV"] = str(host.root / "evil.sh")
    host.report()
    assert not (host.root / "touched").exists()


def test_a_shell_that_has_sourced_nothing_is_told_what_it_lacks(host: MadeHost) -> None:
    for name in ("ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "ATB_HOME_PATH", "LD_LIBRARY_PATH"):
        del host.environ[name]
    red = {line.id: line for line in host.report().red}
    assert "ASCEND_HOME_PATH, ASCEND_OPP_PATH, LD_LIBRARY_PATH" in red["set-env-cann"].found
    assert "ATB_HOME_PATH" in red["set-env-nnal"].found
    assert {"libraries"} <= set(red)


def test_output_is_cut_and_late_commands_end(tmp_path: Path) -> None:
    cut = run_bounded(["yes"], {"PATH": "/usr/bin:/bin"}, tmp_path, seconds=30, most=1000)
    assert (len(cut.output), cut.code) == (1000, None) and "more than 1000 bytes" in cut.problem
    missing = run_bounded(["./none"], {}, tmp_path, seconds=1)
    assert missing.code is None and "can't be started" in missing.problem
    done = run_bounded(
        ["sh", "-c", "echo out; echo err >&2; exit 7"], {"PATH": "/usr/bin:/bin"}, tmp_path, seconds=30
    )
    assert (done.text, done.code, done.problem) == ("out\nerr\n", 7, "")


def test_a_report_shows_no_secret(host: MadeHost) -> None:
    host.environ |= {"WANDB_API_KEY": "k3y-of-someone-0815", "LD_PRELOAD": "/opt/k3y-of-someone-0815/lib.so"}
    report = host.report()
    assert "k3y-of-someone" not in report.text() + json.dumps(report.to_json())
    assert "***" in report.text()
