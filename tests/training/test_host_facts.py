"""Facts of a machine, read from a folder that looks like one."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from npu_rl.common.host_facts import (
    cpus,
    devices,
    facts,
    free_disk,
    memory,
    memory_limit,
    usable_memory,
)


def machine(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_dies_are_counted_by_their_device_files(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in (
        "davinci0",
        "davinci15",
        "davinci_manager",
        "xdavinci1",
        "davinci1x",
        "nvidia0",
        "nvidiactl",
    ):
        (tmp_path / "dev" / name).touch()
    assert devices("npu", tmp_path) == 2
    assert devices("cuda", tmp_path) == 1
    assert devices("cpu", tmp_path) == 0
    assert (facts(tmp_path)["npus"], facts(tmp_path)["gpus"]) == (2, 1)


def test_the_limit_of_a_containers_memory(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) is None
    machine(tmp_path, sys__fs__cgroup__memory__memory_limit_in_bytes="x")
    (tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert memory_limit(tmp_path) is None  # how version 1 writes that there is none
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert memory_limit(tmp_path) is None
    assert usable_memory(tmp_path) == memory()
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("4096\n")
    assert memory_limit(tmp_path) == usable_memory(tmp_path) == 4096


def test_what_is_not_known_is_none_and_all_of_it_is_json(tmp_path: Path) -> None:
    found = facts(tmp_path)
    assert (found["npus"], found["memory_limit"], found["distribution"]) == (0, None, None)
    assert json.loads(json.dumps(found)) == found
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('NAME="openEuler"\nPRETTY_NAME="openEuler 22.03 (LTS)"\n')
    assert facts(tmp_path)["distribution"] == "openEuler 22.03 (LTS)"


def test_this_machine() -> None:
    found = facts()
    assert found["hostname"] == os.uname().nodename
    assert found["kernel"] == os.uname().release
    assert 1 <= found["cpus"] == cpus() <= (os.cpu_count() or 1)
    assert found["memory"] == memory() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_the_disk_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    free = free_disk(tmp_path / "runs" / "name")
    assert free is not None and 0 < free <= shutil.disk_usage(tmp_path).total
    (tmp_path / "file").write_text("")
    assert free_disk(tmp_path / "file" / "below") is None  # a file is no folder
