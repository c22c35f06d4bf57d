"""What one node of a run has: interpreter, packages, code and variables. Standard library only.

Sent to the nodes by value, so that it also runs where this folder is missing, and can say so.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import stat
import sys
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_READERS = 8  # threads that read files: on a network file system each file waits for a server
_LARGE = (
    64 << 20
)  # bytes of a file; no source has so many, and of a checkpoint somebody put there the size will do
# Ray itself gives each worker the devices it may see.
_RAYS = frozenset({"ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"})
# What a node's own shell may set for a training; the same names as a record of the driver shows.
_SHAPES = (
    *("ASCEND_", "ATB_", "CUDA_", "GLOO_", "HCCL_", "LCAL_", "LD_LIBRARY_PATH", "LD_PRELOAD", "MALLOC_"),
    *("MASTER_", "NCCL_", "OMP_", "PYTORCH_", "TASK_QUEUE_", "TORCH", "TP_SOCKET_", "VERL_", "VLLM_"),
)
_SECRET = ("TOKEN", "SECRET", "PASSW", "KEY", "CREDENTIAL")


def look(told: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    """What this process sees. told: paths, code, packages and record of a run. variables: what it should have.

    Returns only what JSON can hold. Of variables that differ there is the name, since a value may be a secret.
    """
    environ = dict(os.environ)
    strays = (name for name in environ if name.startswith("NPU_RL_") and name not in variables)
    return {
        "host": os.uname().nodename,
        "python": ".".join(map(str, sys.version_info[:3])),
        "prefix": os.path.realpath(sys.prefix),
        "packages": _packages(told["packages"], told["paths"]),
        "tree": tree(told["code"]),
        "missing": [path for path in told["paths"] if not _seen(path, environ)],
        "writes": os.access(told["record"], os.W_OK),
        "differ": sorted(
            name for name, value in variables.items() if environ.get(name) != value and name not in _RAYS
        ),
        "strays": sorted(strays),
        "pythonpath": environ.get("PYTHONPATH", ""),
        "environment": {
            name: value
            for name, value in sorted(environ.items())
            if name.startswith(_SHAPES)
            and name not in variables
            and name not in _RAYS
            and not any(word in name.upper() for word in _SECRET)
        },
    }


def _seen(path: str, environ: Mapping[str, str]) -> bool:
    return os.path.isdir(path) and path in environ.get("PYTHONPATH", "").split(os.pathsep)  # noqa: PTH112


def _packages(names: list[str], ours: list[str]) -> dict[str, str | None]:
    """Versions as they are outside the code, whose own metadata would answer for what is not installed."""
    path = [entry for entry in sys.path if entry not in ours]
    found = {}
    for name in names:
        distribution = next(iter(importlib.metadata.distributions(name=name, path=path)), None)
        found[name] = distribution.version if distribution else None
    return found


def tree(folder: str) -> str | None:
    """The id git would give the folder's content: every raw byte and mode. None if it can't be read.

    Byte code and the pointer to the workspace's own repository are left out. Format: gitformat-pack, "tree".
    """
    found = files(folder)
    return None if found is None else _id_of(_nested(found))


def files(folder: str) -> dict[str, tuple[str, str]] | None:
    """Mode and blob id of every file by its path; None if one can't be read."""
    try:
        paths = list(_walk(folder, ""))
        with ThreadPoolExecutor(_READERS) as readers:
            return dict(zip(paths, readers.map(lambda path: _blob(f"{folder}/{path}"), paths), strict=True))
    except OSError:
        return None


def _walk(root: str, below: str) -> Iterator[str]:
    with os.scandir(f"{root}/{below}") as entries:
        for entry in entries:
            path = below + entry.name
            if not entry.is_dir(follow_symlinks=False):
                if path != ".git":
                    yield path
            elif entry.name != "__pycache__":
                yield from _walk(root, path + "/")


def _blob(path: str) -> tuple[str, str]:
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return "120000", _object_id("blob", os.fsencode(os.readlink(path)))  # noqa: PTH115
    if not stat.S_ISREG(status.st_mode):  # a pipe would never end
        return "0", ""
    mode = "100755" if status.st_mode & 0o100 else "100644"
    if status.st_size > _LARGE:
        return mode, _object_id("size", b"%d" % status.st_size)
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        return mode, _object_id("blob", file.read(_LARGE))


def _nested(found: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for path, entry in found.items():
        *folders, name = path.split("/")
        at = root
        for folder in folders:
            at = at.setdefault(folder, {})
        at[name] = entry
    return root


def _id_of(folder: Mapping[str, Any]) -> str:
    lines = []
    for name, entry in folder.items():
        mode, oid = ("40000", _id_of(entry)) if isinstance(entry, dict) else entry
        raw = os.fsencode(name)
        lines.append(
            (raw + b"/" * isinstance(entry, dict), mode.encode() + b" " + raw + b"\0" + bytes.fromhex(oid))
        )
    return _object_id("tree", b"".join(line for _, line in sorted(lines)))


def _object_id(kind: str, data: bytes) -> str:
    return hashlib.sha1(b"%s %d\0" % (kind.encode(), len(data)) + data, usedforsecurity=False).hexdigest()


def logs(job: str, limit: int, whole: int) -> dict[str, bytes]:
    """`ends` of the logs that Ray's workers of a job left on this node."""
    import ray

    return ends(ray._private.worker.global_worker.node.get_logs_dir_path(), job, limit, whole)


def ends(folder: str, job: str, limit: int, whole: int) -> dict[str, bytes]:
    """The ends of a job's logs in a folder, by name, compressed by zlib.

    limit: bytes of one log. whole: bytes of all together; short ones come whole, and the long ones share what is
    left. A log that is cut says so in its first line.
    """
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if (
                entry.name.startswith("worker-")
                and f"-{job}-" in entry.name
                and entry.is_file(follow_symlinks=False)
            ):
                found.append((entry.stat().st_size, entry.name))
    taken = {}
    for number, (size, name) in enumerate(sorted(found)):
        share = min(limit, whole // (len(found) - number))
        whole -= min(size, share)
        if size:
            taken[name] = zlib.compress(_end_of(f"{folder}/{name}", size, share))
    return taken


def _end_of(path: str, size: int, limit: int) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123
        if size <= limit:
            return file.read(limit)
        file.seek(size - limit)
        return b"[npu-rl: %d bytes before this are left out]\n" % (size - limit) + file.read(limit)
