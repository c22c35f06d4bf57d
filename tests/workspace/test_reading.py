"""Reading many files: in threads where a disk is waited for, told of after a second."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from npu_rl.stack.git.objects import FILE, object_id
from npu_rl.workspace.folder import file_check
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from npu_rl.workspace.verification.verify import verify

COUNT = 500


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    for number in range(COUNT):
        (folder / f"m{number}.py").write_bytes(b"x" * number * 37)
    return folder


@cache
def expected() -> dict[str, tuple[str, str]]:
    return {f"m{n}.py": (FILE, object_id("blob", b"x" * n * 37)) for n in range(COUNT)}


def test_threads_find_what_one_reader_finds(root: Path) -> None:
    (root / "m7.py").write_text("other")
    (root / "m8.py").chmod(0o755)
    files = [(entry, entry.name, expected()[entry.name]) for entry in os.scandir(root)]
    (root / "m9.py").unlink()
    told: list[int] = []
    together = list(file_check._read_all(files, told.append))
    assert together == file_check._compare_all(files)
    assert sum(told) == COUNT
    kinds = {path: kind for path, kind, _ in together if kind}
    assert kinds == {"m7.py": "modified", "m8.py": "mode", "m9.py": "missing"}
    for number in range(0, COUNT, 7):
        (root / f"m{number}.py").unlink(missing_ok=True)
        (root / f"m{number}.py").symlink_to("nowhere")  # the open that follows no link fails
    with pytest.raises(OSError, match="symbolic link"):
        list(file_check._read_all(files, told.append))


@pytest.mark.parametrize("deep", [False, True])
def test_progress_is_of_all_files(paths: WorkspacePaths, deep: bool) -> None:
    told: list[tuple[int, int]] = []
    paths.stat.unlink()
    report = verify(paths, lambda message: None, deep=deep, progress=lambda *said: told.append(said))
    assert [total for _, total in told] == [report.files] * len(told)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (report.files, report.files)
