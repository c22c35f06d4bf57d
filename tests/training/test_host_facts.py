"""Facts of a machine, read from a folder that looks like one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npu_rl.common.host_facts import (
    devices,
    facts,
    memory,
    memory_limit,
    usable_memory,
)


def test_devices_memory_and_system_are_read_below_a_folder(tmp_path: Path) -> None:
    found = facts(tmp_path)
    assert (found["npus"], found["memory_limit"], found["distribution"]) == (0, None, None)
    assert json.loads(json.dumps(found)) == found
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
    assert [devices(kind, tmp_path) for kind in ("npu", "cuda", "cpu")] == [2, 1, 0]
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('NAME="openEuler"\nPRETTY_NAME="openEuler 22.03 (LTS)"\n')
    assert facts(tmp_path)["distribution"] == "openEuler 22.03 (LTS)"


@pytest.mark.parametrize(
    ("file", "text", "limit"),
    [
        (
            "memory/memory.limit_in_bytes",
            "9223372036854771712\n",
            None,
        ),  # how version 1 writes that there is none
        ("memory.max", "max\n", None),
        ("memory.max", "4096\n", 4096),
    ],
)
def test_the_limit_of_a_containers_memory(tmp_path: Path, file: str, text: str, limit: int | None) -> None:
    path = tmp_path / "sys/fs/cgroup" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert memory_limit(tmp_path) == limit and usable_memory(tmp_path) == (limit or memory())
