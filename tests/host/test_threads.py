"""What people reported of their hosts, and the line that says so. docs/install.md has the table."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from npu_rl.training.host.line import RED
from tests.host.made_host import ASCEND, MadeHost
from tests.support import ROOT

A3, PLUGIN, TODAY = "deepseek-v3-cann-256die", "verl-npu-dapo-qwen25-32b-4k", "today-grpo-moonlight-16b"
Break = Callable[[MadeHost], None]

PAGE = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([\w-]+)` \| .+ \| ((?:[\w-]+#\d+(?:, )?)+) \|$", PAGE, re.MULTILINE)
CAUGHT = [(thread, line) for line, threads in ROWS for thread in threads.split(", ")]


def torch(version: str, npu: str = "") -> Break:
    def change(host: MadeHost) -> None:
        host.install("torch", version)
        if npu:
            host.install("torch-npu", npu)

    return change


def package(name: str, version: str) -> Break:
    return lambda host: host.install(name, version)


def python_of_another_version(host: MadeHost) -> None:
    host.python_version = "3.9.18"


def another_cann(host: MadeHost) -> None:
    for at in (host.root / ASCEND / "ascend-toolkit").glob("*/aarch64-linux/ascend_toolkit_install.info"):
        at.write_text("package_name=Ascend-cann-toolkit\nversion=8.1.RC1\n")


def no_libatb(host: MadeHost) -> None:
    host.remove(f"{ASCEND}/nnal/atb/latest/atb/cxx_abi_0/lib/libatb.so")


def no_nnal(host: MadeHost) -> None:
    (host.root / ASCEND / "nnal").rename(host.root / "elsewhere")
    del host.environ["ATB_HOME_PATH"]


def nnal_not_sourced(host: MadeHost) -> None:
    del host.environ["ATB_HOME_PATH"]
    host.environ["LD_LIBRARY_PATH"] = host.environ["LD_LIBRARY_PATH"].partition(":")[2]


def vllm_ascend(*, compiled: bool, built_for: str) -> Break:
    def change(host: MadeHost) -> None:
        place = f"{host.site.relative_to(host.root)}/vllm_ascend"
        host.write(f"{place}/__init__.py", "")
        host.write(f"{place}/_build_info.py", f"# Auto-generated file\n__device_type__ = '{built_for}'\n")
        if compiled:
            host.write(f"{place}/vllm_ascend_C.cpython-310-aarch64-linux-gnu.so", "")

    return change


def visible(devices: str) -> Break:
    return lambda host: host.environ.update(ASCEND_RT_VISIBLE_DEVICES=devices)


def a_former_run(host: MadeHost) -> None:
    held = (
        "| 1       1                 | 815           | ray::WorkerDict          | 3130                    |"
    )
    host.table(chips=16, phy_id=True, name="Ascend910", processes=held)


HOSTS: dict[str, tuple[str, Break]] = {
    "verl#5123": (PLUGIN, torch("2.8.0")),
    "vllm-ascend#5710": (PLUGIN, torch("2.8.0", "2.7.1")),
    "vllm-ascend#7587": (PLUGIN, torch("2.8.0", "2.8.0")),
    "vllm-ascend#4081": (PLUGIN, torch("2.8.0", "2.7.1.post1")),
    "vllm-ascend#1188": (A3, torch("2.7.0")),
    "vllm-ascend#3793": (PLUGIN, torch("2.8.0", "2.8.0rc1")),
    "ModelArts-Lab#1898": (TODAY, package("torch-npu", "2.9.0.post2")),
    "verl#5468": (TODAY, package("triton-ascend", "3.2.0rc4")),
    "vllm-ascend#11681": (TODAY, package("triton", "3.5.0")),
    "verl#3561": (A3, package("transformers", "4.56.1")),
    "vllm-ascend#3657": (A3, python_of_another_version),
    "vllm-ascend#1401": (A3, another_cann),
    "vllm-ascend#152": (A3, no_libatb),
    "vllm-ascend#2727": (A3, no_nnal),
    "vllm-ascend#10525": (A3, nnal_not_sourced),
    "vllm-ascend#3342": (TODAY, vllm_ascend(compiled=False, built_for="A2")),
    "vllm-ascend#3998": (TODAY, vllm_ascend(compiled=False, built_for="A2")),
    "vllm-ascend#6206": (A3, vllm_ascend(compiled=True, built_for="A2")),
    "vllm-ascend#2879": (A3, visible("0,1,2,3,4,5,6,7")),
    "ray#59063": (TODAY, visible("")),
    "ray#59163": (TODAY, visible("")),
    "AReaL#1099": (A3, a_former_run),
}


def test_the_page_and_the_hosts_have_the_same_threads() -> None:
    assert sorted(thread for thread, _ in CAUGHT) == sorted(HOSTS)


@pytest.mark.parametrize(("thread", "line"), CAUGHT)
def test_the_line_of_a_thread_is_red(tmp_path: Path, thread: str, line: str) -> None:
    recipe, change = HOSTS[thread]
    host = MadeHost(tmp_path, recipe)
    change(host)
    red = {found.id: found for found in host.report().red}
    assert line in red
    found = red[line]
    assert found.state == RED and found.found and found.wanted and found.command and found.fix
