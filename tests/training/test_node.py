"""What is looked at on a node, in this process: no Ray, no torch, any Python."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

from npu_rl.common.python_roots import INJECTED
from npu_rl.training.record.attempt import Attempt
from npu_rl.training.run.node_reports import refusal


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return module("npu_rl_node", monkeypatch)


@pytest.fixture
def nodes(node: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return module("npu_rl_nodes", monkeypatch)


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, INJECTED / f"{name}.py")
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, made)
    spec.loader.exec_module(made)
    return made


@pytest.mark.pypi
def test_the_tree_of_a_workspace_is_the_locks(node: ModuleType, quickstart_workspace: Path) -> None:
    lock = json.loads((quickstart_workspace / ".npu-rl" / "lock.json").read_text())
    assert node.tree_id(str(quickstart_workspace / "code")) == lock["tree"]


def test_the_tree_is_gits_own(node: ModuleType, tmp_path: Path) -> None:
    """Names that sort as folders do not, links, modes, odd bytes, an empty folder, which git has no word for."""
    files: Mapping[bytes, bytes] = {
        b"a/b": b"1",
        b"a.b": b"2",
        b"a-b/c": b"",
        b"x y/\xff\n": b"3",
        b"run.sh": b"4",
    }
    for name, data in files.items():
        path = os.fsencode(tmp_path) + b"/" + name
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "link").symlink_to("a/b")
    (tmp_path / "empty").mkdir()
    git = ["git", "-c", "core.fileMode=true", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "-A"], check=True)
    tree = subprocess.run([*git, "write-tree"], check=True, capture_output=True, text=True).stdout.strip()
    (tmp_path / ".git").rename(tmp_path.with_name("elsewhere"))
    (tmp_path / "a" / "__pycache__").mkdir()
    (tmp_path / "a" / "__pycache__" / "b.pyc").write_text("byte code is not looked at")
    assert node.tree_id(str(tmp_path)) == tree
    (tmp_path / "run.sh").chmod(0o644)
    assert node.tree_id(str(tmp_path)) != tree
    assert node.tree_id(str(tmp_path / "nowhere")) is None


def test_a_pipe_or_a_checkpoint_in_the_code_stops_nothing(node: ModuleType, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "weights").open("wb") as file:
        file.truncate(1 << 40)
    first = node.tree_id(str(tmp_path))
    with (tmp_path / "weights").open("ab") as file:
        file.truncate((1 << 40) + 1)
    assert first and node.tree_id(str(tmp_path)) != first


def test_long_logs_are_cut_so_that_short_ones_come_whole(node: ModuleType, tmp_path: Path) -> None:
    from zlib import decompress

    for name, size in {"worker-1-0a-7.out": 5, "worker-2-0a-8.err": 9000, "worker-3-0a-9.out": 7000}.items():
        (tmp_path / name).write_bytes(b"x" * (size - 4) + b"last")
    (tmp_path / "worker-4-0b-7.out").write_text("another job's")
    (tmp_path / "raylet.out").write_text("Ray's own")
    (tmp_path / "worker-5-0a-7.out").symlink_to("/etc/passwd")
    taken = {
        name: decompress(data) for name, data in node.log_ends(str(tmp_path), "0a", 6000, 10_005).items()
    }
    assert {name: len(data) // 1000 for name, data in taken.items()} == {
        "worker-1-0a-7.out": 0, "worker-2-0a-8.err": 5, "worker-3-0a-9.out": 5
    }  # fmt: skip
    assert taken["worker-1-0a-7.out"] == b"xlast"
    assert taken["worker-2-0a-8.err"].startswith(b"[npu-rl: 4000 bytes before this are left out]\n")
    assert all(data.endswith(b"last") for data in taken.values())


def test_a_dollar_for_the_loader_is_refused_before_ray(nodes: ModuleType) -> None:
    nodes.require_sendable({"LD_PRELOAD": "/lib/libjemalloc.so", "OTHER": "$x"})
    with pytest.raises(nodes.Refused, match="LD_PRELOAD can't be given to Ray's workers"):
        nodes.require_sendable({"LD_PRELOAD": "/opt/$LIB/x.so"})


def test_a_refusal_that_a_node_wrote_cannot_steer_the_terminal(tmp_path: Path) -> None:
    told = {"what": "1 of 2 nodes", "where": "h\x1b]0;x\x07", "why": ["odd"], "hint": None}
    (tmp_path / "nodes.json").write_text(json.dumps({"refused": told}))
    found = refusal(Attempt(tmp_path, 1))
    assert found is not None and found.exit_code == 3 and "\x1b" not in str(found)
    for text in ("[]", "{", "", '{"refused": 7}', "\xff"):
        (tmp_path / "nodes.json").write_text(text, encoding="latin-1")
        assert refusal(Attempt(tmp_path, 1)) is None
