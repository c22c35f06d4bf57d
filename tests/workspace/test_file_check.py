"""Comparing a folder with a receipt: every kind of difference, and what must not count as one."""

from __future__ import annotations

import json
import os
import py_compile
import socket
import sys
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


def drift(root: Path, expected: Expected) -> list[tuple[str, str]]:
    return [(d.path, d.kind) for d in examine(root, expected, {}).drift]


def test_nothing_is_found_in_an_untouched_folder(root: Path, expected: Expected) -> None:
    findings = examine(root, expected, {})
    assert (findings.drift, findings.ignored) == ([], {})
    assert findings.hashed == len(expected) == len(findings.stats)


@pytest.mark.parametrize("path", [name for name in FILES if name != "pkg/__init__.py"])
def test_modified(root: Path, expected: Expected, path: str) -> None:
    data = bytearray((root / path).read_bytes())
    data[-1] ^= 1
    (root / path).write_bytes(data)
    assert drift(root, expected) == [(path, "modified")]


def test_a_huge_file_is_not_read(root: Path, expected: Expected) -> None:
    """A sparse terabyte in place of a module: verify would have read it for half an hour."""
    os.truncate(root / "pkg/mod.py", 1 << 40)
    assert drift(root, expected) == [("pkg/mod.py", "modified")]
    assert blob_on_disk(str(root / "pkg/mod.py")) == (FILE, "")


def test_an_empty_file_that_grew(root: Path, expected: Expected) -> None:
    (root / "pkg/__init__.py").write_text("import os\n")
    assert drift(root, expected) == [("pkg/__init__.py", "modified")]


def test_missing(root: Path, expected: Expected) -> None:
    (root / "pkg/mod.py").unlink()
    assert drift(root, expected) == [("pkg/mod.py", "missing")]


def test_a_folder_that_is_gone(root: Path, expected: Expected) -> None:
    os.rename(root, root.with_name("away"))
    assert {kind for _, kind in drift(root, expected)} == {"missing"}


@pytest.mark.parametrize(("path", "bits"), [("tool", 0o644), ("pkg/mod.py", 0o744)])
def test_mode(root: Path, expected: Expected, path: str, bits: int) -> None:
    (root / path).chmod(bits)
    assert drift(root, expected) == [(path, "mode")]


def test_bits_that_git_does_not_know_are_no_drift(root: Path, expected: Expected) -> None:
    (root / "tool").chmod(0o700)
    (root / "pkg/mod.py").chmod(0o600)
    assert drift(root, expected) == []


def test_a_file_becomes_a_symlink_to_the_same_content(root: Path, expected: Expected, tmp_path: Path) -> None:
    (root / "pkg/mod.py").rename(tmp_path / "mod.py")
    (root / "pkg/mod.py").symlink_to(tmp_path / "mod.py")
    assert drift(root, expected) == [("pkg/mod.py", "type")]


def test_a_symlink_becomes_a_file(root: Path, expected: Expected) -> None:
    (root / "link").unlink()
    (root / "link").write_text("pkg/mod.py")
    assert drift(root, expected) == [("link", "type")]


def test_a_symlink_leads_elsewhere(root: Path, expected: Expected) -> None:
    (root / "link").unlink()
    (root / "link").symlink_to("/etc/hosts")
    assert drift(root, expected) == [("link", "modified")]


def test_a_file_becomes_a_folder(root: Path, expected: Expected) -> None:
    (root / "pkg/mod.py").unlink()
    (root / "pkg/mod.py").mkdir()
    (root / "pkg/mod.py/inside.py").write_text("")
    assert drift(root, expected) == [("pkg/mod.py", "type"), ("pkg/mod.py/inside.py", "untracked")]


def test_a_file_becomes_a_pipe_or_a_socket(root: Path, expected: Expected) -> None:
    (root / "pkg/mod.py").unlink()
    os.mkfifo(root / "pkg/mod.py")
    (root / "tool").unlink()
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(os.path.relpath(root / "tool"))
        assert drift(root, expected) == [("pkg/mod.py", "type"), ("tool", "type")]


def test_a_folder_becomes_a_symlink(root: Path, expected: Expected, tmp_path: Path) -> None:
    (root / "pkg").rename(tmp_path / "pkg")
    (root / "pkg").symlink_to(tmp_path / "pkg")
    found = drift(root, expected)
    assert ("pkg", "untracked") in found
    assert {p for p, kind in found if kind == "missing"} == {p for p in expected if p.startswith("pkg/")}


@pytest.mark.parametrize("make", ["link", "file", "pipe"])
def test_the_root_itself_is_something_else(root: Path, expected: Expected, tmp_path: Path, make: str) -> None:
    root.rename(tmp_path / "real")
    if make == "link":
        root.symlink_to(tmp_path / "real")
    elif make == "file":
        root.write_text("")
    else:
        os.mkfifo(root)
    assert examine(root, expected, {}).drift == [Difference("", "type")]


def test_a_link_on_the_way_to_a_root_is_drift(root: Path, expected: Expected, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    root.rename(tmp_path / "real" / "x")
    (tmp_path / "src").symlink_to("real")
    assert file_check.examine_root(tmp_path, "src/x", expected, {}).drift == [Difference("", "type")]


# -- untracked -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "random.py", "pkg/random.py", "new/__init__.py", "new/deep/x.py", "fast.so", "pkg/fast.cpython-311-x.so",
        "old.pyc", "pkg/old.pyc", "site.pth", "x.dylib", "x.pyd", "pkg/__pycache__/evil.py",
        "other-1.0.dist-info/entry_points.txt", "other.egg-info/PKG-INFO", "other.egg-info",
    ],
)  # fmt: skip
def test_what_python_would_find_is_drift(root: Path, expected: Expected, name: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("")
    findings = examine(root, expected, {})
    assert findings.drift == [Difference(name, "untracked")]
    assert findings.ignored == {}


@pytest.mark.parametrize("name", ["pkg/out.log", "nohup.out", "pkg/.mod.py.swp", ".idea/misc.xml"])
def test_what_nothing_reads_is_ignored(root: Path, expected: Expected, name: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("")
    findings = examine(root, expected, {})
    assert (findings.drift, list(findings.ignored)) == ([], [name])


def test_no_link_is_ignored(root: Path, expected: Expected, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "file").write_text("")
    (root / "random").symlink_to(tmp_path / "package")
    (root / "later.log").symlink_to(tmp_path / "not-there-yet")
    (root / "self").symlink_to("self")
    (root / "notes.log").symlink_to(tmp_path / "file")
    (root / ".vscode").symlink_to(tmp_path / "package")
    findings = examine(root, expected, {})
    assert [d.path for d in findings.drift] == [".vscode", "later.log", "notes.log", "random", "self"]
    assert findings.ignored == {}


def test_a_repository_inside_is_drift_and_is_not_searched(root: Path, expected: Expected) -> None:
    (root / "pkg/.git/hooks").mkdir(parents=True)
    (root / "pkg/.git/hooks/x.py").write_text("")
    assert drift(root, expected) == [("pkg/.git/", "untracked")]


def test_a_pipe_beside_the_files_stops_nothing(root: Path, expected: Expected) -> None:
    (root / "pkg/__pycache__").mkdir()
    os.mkfifo(root / "pkg/__pycache__/mod.cpython-311.pyc")
    os.mkfifo(root / "pipe")
    findings = examine(root, expected, {})
    assert [d.path for d in findings.drift] == ["pipe", "pkg/__pycache__/mod.cpython-311.pyc"]


def compiled(root: Path, source: str, mode: py_compile.PycInvalidationMode) -> Path:
    return Path(py_compile.compile(str(root / source), doraise=True, invalidation_mode=mode))


@pytest.mark.parametrize("mode", ["TIMESTAMP", "CHECKED_HASH"])
def test_byte_code_that_python_holds_against_a_source_is_listed(
    root: Path, expected: Expected, mode: str
) -> None:
    made = compiled(root, "pkg/mod.py", py_compile.PycInvalidationMode[mode])
    findings = examine(root, expected, {})
    assert (findings.drift, findings.ignored) == ([], {})
    assert findings.byte_code == [str(made.relative_to(root))]


def test_bytecode_with_an_unchecked_hash_is_drift(root: Path, expected: Expected) -> None:
    made = compiled(root, "pkg/mod.py", py_compile.PycInvalidationMode.UNCHECKED_HASH)
    assert drift(root, expected) == [(str(made.relative_to(root)), "untracked")]


def test_bytecode_without_a_source_is_drift(root: Path, expected: Expected) -> None:
    made = compiled(root, "pkg/mod.py", py_compile.PycInvalidationMode.TIMESTAMP)
    gone = made.with_name(made.name.replace("mod", "gone"))
    made.rename(gone)
    assert drift(root, expected) == [(str(gone.relative_to(root)), "untracked")]


def test_truncated_bytecode_is_drift(root: Path, expected: Expected) -> None:
    made = compiled(root, "pkg/mod.py", py_compile.PycInvalidationMode.TIMESTAMP)
    made.write_bytes(made.read_bytes()[:12])
    assert drift(root, expected) == [(str(made.relative_to(root)), "untracked")]


# -- the record of what was proven ---------------------------------------------------------------------

LONG_AGO = 10**18


def settled(root: Path, expected: Expected) -> dict[str, file_check.Stat]:
    """A record as if it had been written long after the files."""
    text = file_check.dump_stats(
        {"code": examine(root, expected, {}).stats}, time.time_ns() + 10**10, "receipt"
    )
    return json.loads(text)["roots"]["code"]  # type: ignore[no-any-return]


def test_quick_reads_nothing_that_was_proven(root: Path, expected: Expected) -> None:
    findings = examine(root, expected, settled(root, expected))
    assert (findings.hashed, findings.drift) == (0, [])


def test_deep_reads_everything(root: Path, expected: Expected) -> None:
    assert examine(root, expected, {}).hashed == len(expected)


def test_same_size_and_restored_times_hide_nothing(root: Path, expected: Expected) -> None:
    known = settled(root, expected)
    before = (root / "pkg/mod.py").stat()
    (root / "pkg/mod.py").write_bytes(b"X = 2\n")
    os.utime(root / "pkg/mod.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    findings = examine(root, expected, known)
    assert findings.drift == [Difference("pkg/mod.py", "modified")]
    assert findings.hashed == 1


def test_a_file_moved_over_another_with_all_its_times(root: Path, expected: Expected, tmp_path: Path) -> None:
    known = settled(root, expected)
    before = (root / "pkg/mod.py").stat()
    (tmp_path / "other").write_bytes(b"X = 2\n")
    os.utime(tmp_path / "other", ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(tmp_path / "other", root / "pkg/mod.py")
    assert examine(root, expected, known).drift == [Difference("pkg/mod.py", "modified")]


def test_a_touched_file_is_read_and_found_equal(root: Path, expected: Expected) -> None:
    known = settled(root, expected)
    os.utime(root / "pkg/mod.py", ns=(LONG_AGO, LONG_AGO))
    findings = examine(root, expected, known)
    assert (findings.hashed, findings.drift) == (1, [])


def test_a_file_that_differs_is_never_recorded(root: Path, expected: Expected) -> None:
    (root / "pkg/mod.py").write_text("X = 9\n")
    assert "pkg/mod.py" not in settled(root, expected)
    assert examine(root, expected, settled(root, expected)).drift == [Difference("pkg/mod.py", "modified")]


@pytest.mark.parametrize(
    ("age", "kept"),
    [(0, False), (50_000_001, False), (150_000_001, True), (-1, False)],
)
def test_young_files_are_not_recorded(age: int, kept: bool) -> None:
    now = 1_700_000_000_123_456_789
    text = file_check.dump_stats({"code": {"f": [1, LONG_AGO, now - age, 7, 0o100644]}}, now, "receipt")
    assert ("f" in json.loads(text)["roots"]["code"]) is kept


def test_what_was_only_read_has_to_be_older_unless_it_is_known() -> None:
    now = 1_700_000_000_123_456_789
    stat = (1, LONG_AGO, now - 1_000_000_000, 7, 0o100644)
    for known, kept in [({}, False), ({"code": {"f": stat}}, True), ({"code": {"f": (2, *stat[1:])}}, False)]:
        text = file_check.dump_stats(
            {"code": {"f": stat}}, now, "receipt", margin=file_check.CACHED_NS, known=known
        )
        assert ("f" in json.loads(text)["roots"]["code"]) is kept


def test_a_file_system_with_whole_seconds_gets_more_room() -> None:
    now = 1_700_000_002_500_000_000
    for changed, kept in [(1_700_000_001_000_000_000, False), (1_700_000_000_000_000_000, True)]:
        text = file_check.dump_stats({"code": {"f": [1, changed, changed, 7, 0o100644]}}, now, "receipt")
        assert ("f" in json.loads(text)["roots"]["code"]) is kept


def test_the_record_is_for_one_receipt(tmp_path: Path) -> None:
    path = tmp_path / "stat.json"
    path.write_text(file_check.dump_stats({"code": {"f": [1, 2, 3, 4, 5]}}, time.time_ns(), "a" * 64))
    assert file_check.read_stats(path, "a" * 64) == {"code": {"f": [1, 2, 3, 4, 5]}}
    assert file_check.read_stats(path, "b" * 64) == {}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "3", '{"roots": 3}', '{"receipt": "r", "roots": [1]}',
     '{"receipt": "r", "roots": {"code": [1]}}', '{"receipt": "r", "roots": null}', "\udcff"],
)  # fmt: skip
def test_a_damaged_record_is_no_record(tmp_path: Path, text: str) -> None:
    (tmp_path / "stat.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert file_check.read_stats(tmp_path / "stat.json", "r") == {}


def test_the_clock_is_that_of_the_file_system_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "before").write_text("")
    now = file_check.file_system_time(tmp_path)
    assert now >= (tmp_path / "before").stat().st_mtime_ns
    assert os.listdir(tmp_path) == ["before"]


def test_ids_are_gits(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"hello\n")
    assert blob_on_disk(str(tmp_path / "f")) == (
        FILE,
        "ce013625030ba8dba906f756967f9e9ca394464a",
    )


@pytest.mark.skipif(os.getuid() != 0 or sys.platform != "linux", reason="needs another user to become")
def test_a_file_nobody_may_read_is_an_error_not_a_pass(root: Path, expected: Expected) -> None:
    (root / "pkg/mod.py").chmod(0)
    os.chmod(root.parent, 0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(PermissionError):
            examine(root, expected, {})
    finally:
        os.seteuid(0)
