"""JSON nested without end, FIFOs in place of files, users that aren't there: a message, never a traceback."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from npu_rl.common.bounded import parse_json, read_json
from npu_rl.common.errors import NpuRlError
from npu_rl.stack.git.objects import FILE, Entry, format_tree
from npu_rl.workspace.folder.file_check import read_stats
from tests.resolve.world import World

DEEP = b"[" * 200_000


@pytest.mark.parametrize(
    "text", [DEEP, b'{"a":' * 200_000, b"", b"\xff", b"9" * 5000 + b"e", b'"\\ud800', b"[,"]
)
def test_json_that_is_none_is_one_error(text: bytes, tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        parse_json(text)
    (tmp_path / "f").write_bytes(text)
    with pytest.raises(ValueError):
        read_json(tmp_path / "f")
    assert read_stats(tmp_path / "f", "x") == {}


def upstream_tree(folder: Path, entries: list[tuple[str, str, str]]) -> str:
    """A bare repository whose main has a tree object of these (mode, name, id), as they are; the commit."""
    subprocess.run(["git", "init", "-q", "--bare", str(folder)], check=True)

    def make(kind: str, data: bytes) -> str:
        command = ["git", f"--git-dir={folder}", "hash-object", "--literally", "-t", kind, "-w", "--stdin"]
        return subprocess.run(command, input=data, capture_output=True, check=True).stdout.decode().strip()

    blob, empty = make("blob", b"x\n"), make("blob", b"")
    known = {"blob": blob, "empty": empty, "tree": make("tree", format_tree({"f": Entry(FILE, blob)}))}
    data = b"".join(
        f"{mode} {name}\0".encode() + bytes.fromhex(known.get(oid, oid)) for mode, name, oid in entries
    )
    who = "A <a@b> 0 +0000"
    commit = f"tree {make('tree', data)}\nauthor {who}\ncommitter {who}\n\nx\n"
    oid = make("commit", commit.encode())
    subprocess.run(["git", f"--git-dir={folder}", "update-ref", "refs/heads/main", oid], check=True)
    return oid


ODD_TREES: dict[str, tuple[list[tuple[str, str, str]], str]] = {
    "a name twice": ([("100644", "a", "blob"), ("100644", "a", "blob")], "'a' twice"),
    "a file and a folder": ([("100644", "a", "blob"), ("40000", "a", "tree")], "'a' twice"),
    "a stream of .git": ([("100644", ".git::$INDEX_ALLOCATION", "blob")], "git's own folder"),
    "a backslash after .git": ([("100644", ".git\\config", "blob")], "git's own folder"),
    ".git in capitals": ([("40000", ".GIT", "tree")], "git's own folder"),
    "the folder above": ([("40000", "..", "tree")], "a path component is '..'"),
    "the folder itself": ([("100644", ".", "blob")], "a path component is '.'"),
    "a long name": ([("100644", "n" * 256, "blob")], "longer than 255 bytes"),
    "an empty symlink": ([("120000", "a", "empty")], "0 bytes long"),
    "a tree as a file": ([("100644", "a", "tree")], "object is not a blob"),
}


@pytest.mark.parametrize("what", ODD_TREES)
def test_a_tree_that_git_would_not_check_out_is_refused_by_lock(what: str, world: World) -> None:
    entries, says = ODD_TREES[what]
    up = world.root / "up"
    oid = upstream_tree(up, entries)
    take = [{"from": ".", "to": "."}]
    world.manifest({"up": {"ref": oid, "sources": [{"git": f"file://{up}"}], "take": take}})
    with pytest.raises(NpuRlError, match=re.escape(says)):
        world.lock()
    assert not (world.root / "project" / "m.lock.json").exists()
