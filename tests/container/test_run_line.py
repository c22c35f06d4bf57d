"""The docker run line: devices and limits of each kind of machine, as machines.yaml has them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from npu_rl.training.host.machines import machine_kind
from tests.in_process import run_here
from tests.support import assert_told, clean_env, ok

CONTROL = ["/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"]
DRIVER = (
    "/usr/local/dcmi",
    "/usr/local/bin/npu-smi",
    "/usr/local/Ascend/driver/lib64",
    "/usr/local/Ascend/driver/version.info",
    "/etc/ascend_install.info",
)


def words(folder: Path, *arguments: str) -> tuple[list[str], str]:
    """The words of the line, as a shell takes them, and the notes beside it."""
    done = ok(run_here(["container", "--run-line", *arguments], clean_env(folder)))
    found = shlex.split(done.stdout)
    assert found[:4] == ["docker", "run", "-it", "--rm"]
    return found, done.stderr


def values(line: Sequence[str], option: str) -> list[str]:
    return [value for name, value in pairwise(line) if name == option]


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("-m", "today"), "a3"),  # -a3- in its image
        (("-m", "mindspeed-rl-grpo"), "a2"),  # -910b-
        (("-m", "today", "--kind", "a2"), "a2"),
        (("-m", "deepseek-v3-cann"), "a3"),
    ],
)
def test_a_kind_of_npu_has_its_devices(tmp_path: Path, arguments: tuple[str, ...], kind: str) -> None:
    line, _ = words(tmp_path, *arguments)
    count = min(machine_kind(kind)["devices"].value)
    assert count == {"a3": 16, "a2": 8}[kind]
    assert values(line, "--device") == [*(f"/dev/davinci{number}" for number in range(count)), *CONTROL]
    mounts = values(line, "-v")
    assert {f"{path}:{path}" for path in DRIVER} <= set(mounts)
    assert "$PWD/runs:/opt/npu-rl-workspace/runs" in mounts
    assert line[-1] == f"npu-rl-{arguments[1]}"


def test_the_limits_are_what_doctor_wants(tmp_path: Path) -> None:
    line, _ = words(tmp_path, "-m", "today")
    everywhere = machine_kind("a3")
    assert values(line, "--ulimit") == [f"nofile={everywhere['nofile'].value}"]
    assert values(line, "--shm-size") == [f"{everywhere['shm'].value >> 30}g"]
    assert "--privileged" not in line


def test_gpus_and_cpus_have_no_davinci(tmp_path: Path) -> None:
    line, notes = words(tmp_path, "-m", "pai-megatron-deepseek-v3")
    assert values(line, "--gpus") == ["all"] and "memlock=-1" in values(line, "--ulimit")
    assert (values(line, "--device"), notes) == ([], "")
    line, notes = words(tmp_path, "-m", "quickstart")
    assert not {"--gpus", "--device"} & set(line) and notes == ""


def test_an_unknown_kind_of_npu_is_said(tmp_path: Path) -> None:
    assert "the line is for an A3" in words(tmp_path, "-m", "newest")[1]
    assert words(tmp_path, "-m", "newest", "--kind", "a3")[1] == ""


@pytest.mark.parametrize(("manifest", "kind"), [("today", "950"), ("today", "h20"), ("quickstart", "a3")])
def test_a_kind_without_published_devices_is_refused(tmp_path: Path, manifest: str, kind: str) -> None:
    done = run_here(["container", "-m", manifest, "--run-line", "--kind", kind], clean_env(tmp_path))
    assert_told(done, "Unsupported kind of machine", "--kind", "Write one of", code=2)
    assert done.stdout == ""
