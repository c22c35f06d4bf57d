"""What is asked of the hosts of a Ray cluster before their tasks begin; tests/weights/test_ray_workers.py has Ray."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.errors import HostError, UsageError
from npu_rl.weights.checkpoints.choose_workers import pool_of
from npu_rl.weights.checkpoints.ray_workers import RayWorkers
from npu_rl.weights.checkpoints.worker_pool import Task
from npu_rl.weights.tensors.npu_rl_tensors import ray_driver, ray_host
from tests.weights.inline_workers import interpreter

TOKEN = "0011223344556677"


def looked(folder: Path, torch: str | None = "2.7.1", output: str | None = None) -> dict[str, Any]:
    found = ray_host.fingerprint(str(folder))
    return {"python": "3.11.9", "torch": torch, "folders": {"IN": found}, "output": output}


def problems(there: Any, here: Any, output: Path | None = None) -> list[str]:
    return list(ray_driver._problems(there, here, None if output is None else str(output), TOKEN, "node"))


def test_an_input_of_other_files_or_sizes_is_told(tmp_path: Path) -> None:
    for name in ("here", "there"):
        (tmp_path / name / "iter_1").mkdir(parents=True)
        (tmp_path / name / "iter_1" / "a.pt").write_bytes(b"12")
    here = looked(tmp_path / "here")
    assert problems(looked(tmp_path / "there"), here) == []
    (tmp_path / "there" / "iter_1" / "a.pt").write_bytes(b"123")
    assert problems(looked(tmp_path / "there"), here) == ["IN has other files there, or of other sizes"]
    (tmp_path / "there" / "iter_1" / "a.pt").unlink()
    assert problems(looked(tmp_path / "there"), here) == ["IN has other files there, or of other sizes"]
    assert problems(looked(tmp_path / "nowhere"), here) == ["IN is not there"]


def test_another_torch_is_told(tmp_path: Path) -> None:
    here = looked(tmp_path)
    assert problems(looked(tmp_path, torch="2.7.1+cpu"), here) == []
    assert problems(looked(tmp_path, torch="2.6.0"), here) == ["it has torch 2.6.0, and this host 2.7.1"]
    assert problems(looked(tmp_path, torch=None), here) == ["its interpreter (Python 3.11.9) has no torch"]


def test_a_host_that_gives_no_answer_is_told(tmp_path: Path) -> None:
    assert problems(None, looked(tmp_path)) == ["no worker answered in 180 s"]
    assert problems("boom", looked(tmp_path)) == ["no worker could be started: boom"]


def test_an_output_that_is_not_the_same_folder_is_told(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    ray_host.probe(here, TOKEN).write_text(TOKEN)
    not_seen = ray_host._answer_probe(there, TOKEN, "node")
    assert problems(looked(here, output=not_seen), looked(here), here) == [
        f"{here}: a file written on another host is not there"
    ]
    ray_host.probe(there, TOKEN).write_text(TOKEN)  # a folder of its own which has got a copy
    assert problems(
        looked(here, output=ray_host._answer_probe(there, TOKEN, "node")), looked(here), here
    ) == [f"{here}: a file that it has written there is not here"]
    assert (
        problems(looked(here, output=ray_host._answer_probe(here, TOKEN, "node")), looked(here), here) == []
    )
    assert {path.suffix for path in here.iterdir()} == {".part"}  # what is removed after an interruption


def test_an_interpreter_without_ray_is_named(tmp_path: Path) -> None:
    code = "import sys; sys.path.insert(0, '$PYTHONPATH'); "
    code += "import npu_rl_tensors.ray_driver as driver; driver.main()"
    bare = interpreter(tmp_path, f'exec {sys.executable} -I -S -c "{code}"')
    with pytest.raises(HostError) as caught:
        RayWorkers(bare, 1).run([Task("audit_group", {}, "")], print, print)
    assert caught.value.what == "The interpreter has no Ray"
    assert "--python" in str(caught.value.hint)


@pytest.mark.parametrize("address", ["head", "head:0", "ray://head:10001", "head:70000", ""])
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="Invalid --ray"):
        pool_of(sys.executable, 2, ray=address)


def test_workers_are_for_each_host() -> None:
    found = pool_of(sys.executable, 8, ray="auto")
    assert isinstance(found, RayWorkers) and (found.count, found.address) == (8, "auto")
    assert pool_of(sys.executable, None, ray="10.0.0.1:6766").count == 16
