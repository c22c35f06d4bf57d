"""`data get` and `weights get`: commands that name what documents name, and the proof that a download is whole."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from npu_rl.data.downloads.verify_download import VerifiedDownload, verify_download
from tests.command_server import read_at_start
from tests.support import python_env, run_cli

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def get(kind: str, *args: str | Path) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name not in read_at_start(os.environ)}
    return run_cli([kind, "get", *args], env | python_env())


def verify(kind: str, name: str, folder: Path, *more: str) -> tuple[int, dict[str, Any]]:
    done = get(kind, name, "--to", folder, "--verify", "--json", *more)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def hub_file(folder: Path, name: str, content: bytes, *, large: bool = True, commit: str = COMMIT) -> Path:
    """A file as `hf download --local-dir` leaves it, with its metadata (huggingface_hub 0.36.2)."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    metadata = folder / ".cache/huggingface/download" / f"{name}.metadata"
    metadata.parent.mkdir(parents=True, exist_ok=True)
    blob = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
    metadata.write_text(
        f"{commit}\n{hashlib.sha256(content).hexdigest() if large else blob}\n1712656091.123\n"
    )
    return path


def shard(**tensors: int) -> bytes:
    header, at = {}, 0
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(at)


def test_the_commands_of_a_dataset() -> None:
    done = get("data", "deepscaler", "--to", "my data")
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(":", 1) for line in done.stdout.splitlines() if line[0] != " ")
    hub = shlex.split(lines["hub"])
    assert hub[:3] == ["hf", "download", "agentica-org/DeepScaleR-Preview-Dataset"]
    assert hub[3:] == ["deepscaler.json", "--repo-type", "dataset", "--local-dir", "my data"]
    assert shlex.split(lines["modelscope"])[-2:] == ["--local_dir", "my data"]
    assert lines["mirror"].strip().startswith("HF_ENDPOINT=https://")
    assert "not pinned" in lines["revision"]
    assert "--input 'my data'/deepscaler.json" in done.stdout


def test_a_whole_download_of_the_hub(tmp_path: Path) -> None:
    hub_file(tmp_path, "deepscaler.json", b"[]" * 100)
    hub_file(tmp_path, "sub/README.md", b"# Data\n", large=False)
    code, report = verify("data", "deepscaler", tmp_path, "--revision", COMMIT)
    assert code == 0 and report["faults"] == [] and report["commits"] == [COMMIT]
    assert sorted(report["hashed"]) == ["deepscaler.json", "sub/README.md"]


def test_a_changed_missing_or_unfinished_file(tmp_path: Path) -> None:
    path = hub_file(tmp_path, "deepscaler.json", b"[]" * 100)
    path.write_bytes(b"[]" * 99 + b"[ ")
    hub_file(tmp_path, "README.md", b"# Data\n", large=False).unlink()
    (tmp_path / ".cache/huggingface/download/abc.incomplete").write_bytes(b"x")
    (tmp_path / "LICENSE").touch()
    (tmp_path / ".cache/huggingface/download/odd.json.metadata").write_text("?")
    code, report = verify("data", "deepscaler", tmp_path, "--revision", "f" * 40)
    faults = "\n".join(report["faults"])
    assert code == 1
    for word in (
        "deepscaler.json: its content is not what the hub stated",
        "README.md: missing",
        "abc.incomplete: a download that was not finished",
        "LICENSE: empty",
        "odd.json: what the hub's client noted",
        f"not from {'f' * 40}",
    ):
        assert word in faults, faults


def checked(folder: Path, *needed: str) -> VerifiedDownload:
    return verify_download(folder, needed, None, lambda _done, _total: None)


def test_shards_are_held_against_index_and_header(tmp_path: Path) -> None:
    names = [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    index = {"weight_map": {f"t{n}": name for n, name in enumerate(names)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in names:
        (tmp_path / name).write_bytes(shard(a=100, b=50))
    assert checked(tmp_path).whole == names and not checked(tmp_path).faults
    (tmp_path / names[0]).write_bytes(shard(a=100, b=50)[:-1])
    (tmp_path / names[1]).write_bytes(os.urandom(100))
    (tmp_path / names[2]).unlink()
    states, damaged, missing = checked(tmp_path).faults
    assert "its header states" in states and "header is damaged" in damaged
    assert missing == f"{names[2]}: missing"


@pytest.mark.parametrize("text", ["[]", '{"weight_map": {"a": 1}}', "{"])
def test_an_index_that_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    assert checked(tmp_path).faults == ["model.safetensors.index.json: it is not an index of weights"]


@pytest.mark.parametrize("noted", [False, True])
def test_what_is_no_file(noted: bool, tmp_path: Path) -> None:
    """A link whose blob was removed, or a pipe, ended in a traceback."""
    (tmp_path / "gone").symlink_to("../../blobs/gone")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    names = ["gone", "loop", "pipe"]
    if noted:
        notes = tmp_path / ".cache/huggingface/download"
        notes.mkdir(parents=True)
        for name in names:
            (notes / f"{name}.metadata").write_text(f"{'0' * 40}\n{'1' * 64}\n0\n")
    assert checked(tmp_path, *names).faults == [
        f"{name}: a link that leads to no file, or a pipe or device" for name in names
    ]
