"""Files with more bytes than their size says: those of /proc have a size of 0, and some of them have no end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from npu_rl.common.errors import HostError
from npu_rl.data.downloads.verify_download import verify_download
from npu_rl.training.record.worker_logs import keep_worker_logs
from npu_rl.weights.checkpoints.hash_list import write_hashes
from npu_rl.weights.checkpoints.other_files import other_files
from tests.downloads.test_get import hub_file


def copied(folder: Path) -> None:
    target = folder.with_name("target")
    target.mkdir()
    other_files(folder).copy(folder, target)


def hashed(folder: Path) -> None:
    write_hashes(folder, 1, lambda _: None)


def verified(folder: Path) -> None:
    (folder / "notes.txt").unlink()
    hub_file(folder, "notes.txt", b"").unlink()
    (folder / "notes.txt").symlink_to("/proc/self/status")
    verify_download(folder, [], None, lambda *_: None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if not Path("/proc/self/status").is_file():
        pytest.skip("no /proc")
    found = tmp_path / "model"
    found.mkdir()
    (found / "notes.txt").symlink_to("/proc/self/status")
    return found


@pytest.mark.parametrize("read", [copied, hashed, verified])
def test_it_is_refused(read: Callable[[Path], None], folder: Path) -> None:
    """`weights cast` had copied 6 GB of /proc/self/pagemap after 45 s, and asked for no space."""
    with pytest.raises(HostError, match="A file has no end"):
        read(folder)


def test_it_is_no_log_of_a_worker(folder: Path) -> None:
    """Of a log only the last 32 MiB are kept; copying to the end would fill the disk beside a process that writes."""
    logs = folder / "ray/session_2026/logs"
    logs.mkdir(parents=True)
    (logs / "endless.log").symlink_to("/proc/self/status")
    (logs / "worker.out").write_bytes(b"x" * 100)
    (folder / "kept").mkdir()
    keep_worker_logs(folder / "ray", folder / "kept")
    assert [path.name for path in (folder / "kept").iterdir()] == ["worker.out"]
