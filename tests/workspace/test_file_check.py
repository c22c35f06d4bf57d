"""What is read of a folder, and what is recorded as proven; test_every_change.py has the kinds of difference."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from npu_rl.stack.git.objects import EXECUTABLE, FILE, SYMLINK, object_id
from npu_rl.workspace.folder import file_check
from npu_rl.workspace.folder.file_check import Difference, blob_on_disk, examine

Expected = dict[str, tuple[str, str]]

FILES = {
    "pkg/__init__.py": b"",
    "pkg/mod.py": b"X = 1\n",
    "pkg/two words.py": b"Y = 1\n",
    "pkg/größe.py": b"Z = 1\n",
    "pkg/line\nbreak.txt": b"text\n",
    "pkg/big.bin": bytes(range(256)) * 9000,  # more than two chunks
    "tool": b"#!/bin/sh\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    for name, data in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (folder / "tool").chmod(0o755)
    (folder / "link").symlink_to("pkg/mod.py")
    (folder / ".git").write_text("gitdir: elsewhere\n")
    return folder


@pytest.fixture
def expected() -> Expected:
    found = {name: (FILE, object_id("blob", data)) for name, data in FILES.items()}
    found["tool"] = (EXECUTABLE, found["tool"][1])
    found["link"] = (SYMLINK, object_id("blob", b"pkg/mod.py"))
    return found


def test_nothing_is_found_in_an_untouched_folder(root: Path, expected: Expected) -> None:
    findings = examine(root, expected, {})
    assert (findings.drift, findings.ignored) == ([], {})
    assert findings.hashed == len(expected) == len(findings.stats)
    os.truncate(root / "tool", 1 << 40)  # a sparse terabyte: verify would have read it for half an hour
    assert examine(root, expected, findings.stats).drift == [Difference("tool", "modified")]
    assert blob_on_disk(str(root / "tool")) == (FILE, "")


# -- the record of what was proven ---------------------------------------------------------------------

LONG_AGO = 10**18


def settled(root: Path, expected: Expected) -> dict[str, file_check.Stat]:
    """A record as if it had been written long after the files."""
    text = file_check.dump_stats(
        {"code": examine(root, expected, {}).stats}, time.time_ns() + 10**10, "receipt"
    )
    return json.loads(text)["roots"]["code"]  # type: ignore[no-any-return]


def test_a_touched_file_is_read_and_found_equal(root: Path, expected: Expected) -> None:
    known = settled(root, expected)
    os.utime(root / "pkg/mod.py", ns=(LONG_AGO, LONG_AGO))
    findings = examine(root, expected, known)
    assert (findings.hashed, findings.drift) == (1, [])


def test_a_file_that_differs_is_never_recorded(root: Path, expected: Expected) -> None:
    (root / "pkg/mod.py").write_text("X = 9\n")
    assert "pkg/mod.py" not in settled(root, expected)
    assert examine(root, expected, settled(root, expected)).drift == [Difference("pkg/mod.py", "modified")]


NOW = 1_700_000_000_123_456_789
SECOND = 1_700_000_000_000_000_000


@pytest.mark.parametrize(
    ("now", "changed", "kept"),
    [(NOW, NOW, False), (NOW, NOW - 50_000_001, False), (NOW, NOW - 100_000_000, False),
     (NOW, NOW - 100_000_001, True), (NOW, NOW + 1, False),
     # a file system with whole seconds gets more room
     (SECOND + 2_500_000_000, SECOND + 1_000_000_000, False), (SECOND + 2_500_000_000, SECOND, True)],
)  # fmt: skip
def test_young_files_are_not_recorded(now: int, changed: int, kept: bool) -> None:
    text = file_check.dump_stats({"code": {"f": [1, LONG_AGO, changed, 7, 0o100644]}}, now, "receipt")
    assert ("f" in json.loads(text)["roots"]["code"]) is kept


def test_what_was_only_read_has_to_be_older_unless_it_is_known() -> None:
    now = NOW
    stat = (1, LONG_AGO, now - 1_000_000_000, 7, 0o100644)
    for known, kept in [({}, False), ({"code": {"f": stat}}, True), ({"code": {"f": (2, *stat[1:])}}, False)]:
        text = file_check.dump_stats(
            {"code": {"f": stat}}, now, "receipt", margin=file_check.CACHED_NS, known=known
        )
        assert ("f" in json.loads(text)["roots"]["code"]) is kept


def test_the_record_is_for_one_receipt(tmp_path: Path) -> None:
    path = tmp_path / "stat.json"
    path.write_text(file_check.dump_stats({"code": {"f": [1, 2, 3, 4, 5]}}, time.time_ns(), "a" * 64))
    assert file_check.read_stats(path, "a" * 64) == {"code": {"f": [1, 2, 3, 4, 5]}}
    assert file_check.read_stats(path, "b" * 64) == {}
