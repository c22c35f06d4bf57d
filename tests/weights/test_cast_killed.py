"""A cast that is killed or interrupted goes on where it was, and leaves no process behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from npu_rl.weights.checkpoints.output_folder import NOTE
from tests.support import ROOT, clean_env
from tests.weights.tiny_checkpoint import Maker, write_checkpoint

pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal

SHARDS = 48


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    make = Maker()
    weight = make.weight("x", 256, 512)
    shards = {
        f"model-{i:05}-of-{SHARDS:05}.safetensors": {
            name.replace("x", f"model.layers.0.mlp.experts.{i}.up_proj.weight"): tensor
            for name, tensor in weight.items()
        }
        for i in range(1, SHARDS + 1)
    }
    return write_checkpoint(tmp_path_factory.mktemp("killed") / "in", shards)


def start(source: Path, target: Path, tmp_path: Path) -> subprocess.Popen[str]:
    words = ["weights", "cast", str(source), str(target), "--json", "--workers", "2"]
    argv = [sys.executable, "-m", "npu_rl", *words]
    return subprocess.Popen(
        argv, env={**clean_env(tmp_path), "PYTHONPATH": str(ROOT)}, cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finished(target: Path) -> int:
    return len(list(target.glob("*.safetensors")))


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a cast that nobody disturbs writes, which nobody may change."""
    folder = tmp_path_factory.mktemp("whole")
    process = start(source, folder / "out", folder)
    assert process.wait(120) == 0, process.communicate()
    return folder / "out"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_it_goes_on_where_it_was(source: Path, whole: Path, tmp_path: Path, number: signal.Signals) -> None:
    target = tmp_path / "out"
    process = start(source, target, tmp_path)
    while finished(target) < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode in (-number, 128 + number)
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert alive == []
    before = finished(target)
    assert 3 <= before < SHARDS
    assert not (target / "model.safetensors.index.json").exists()

    (target / "model-00047-of-00048.safetensors.part").write_bytes(b"half")
    process = start(source, target, tmp_path)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert json.loads(out)["files_kept"] == before
    names = sorted(p.name for p in whole.iterdir())
    assert sorted(p.name for p in target.iterdir()) == names
    for name in names:
        if name != NOTE:
            assert (target / name).read_bytes() == (whole / name).read_bytes()
