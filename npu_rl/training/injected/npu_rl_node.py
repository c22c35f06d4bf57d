"""Interpreter, packages, code and variables of one node of a run. Standard library only.

Its functions are sent to the nodes by value, so that they also run, and report it, where this folder is missing.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import stat
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from npu_rl_host import host_facts  # sent by value with these functions

_THREADS = 8  # threads that read files; on a network file system each read waits for a server
_READ_LIMIT = 64 << 20  # bytes; larger files are no sources, and only their size is compared
# Ray sets the devices that each worker may see.
_SET_BY_RAY = frozenset({"ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"})
# Variables of a node's own shell that affect a training; the record of the driver has the same names.
_TRAINING_PREFIXES = (
    *("ASCEND_", "ATB_", "CUDA_", "GLOO_", "HCCL_", "LCAL_", "LD_LIBRARY_PATH", "LD_PRELOAD", "MALLOC_"),
    *("MASTER_", "NCCL_", "OMP_", "PYTORCH_", "TASK_QUEUE_", "TORCH", "TP_SOCKET_", "VERL_", "VLLM_"),
)
_SECRET = ("TOKEN", "SECRET", "PASSW", "KEY", "CREDENTIAL")


def describe_node(run: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    """Return facts about this process's node, as JSON types.

    Variables that differ are listed by name only, since a value may be a secret.

    Args:
        run: Paths, code, packages and record of the run (NPU_RL_NODES).
        variables: The variables that it should have.
    """
    environ = dict(os.environ)
    strays = (name for name in environ if name.startswith("NPU_RL_") and name not in variables)
    return {
        "host": os.uname().nodename,
        "python": ".".join(map(str, sys.version_info[:3])),
        "prefix": os.path.realpath(sys.prefix),
        "packages": _packages(run["packages"], run["paths"]),
        "tree": tree_id(run["code"]),
        "missing": [path for path in run["paths"] if not _is_on_pythonpath(path, environ)],
        "writes": os.access(run["record"], os.W_OK),
        "differ": sorted(
            name
            for name, value in variables.items()
            if environ.get(name) != value and name not in _SET_BY_RAY
        ),
        "strays": sorted(strays),
        "pythonpath": environ.get("PYTHONPATH", ""),
        "stack": {**host_facts("/", environ), **_packages(["torch", "torch-npu"], run["paths"])},
        "clock": time.time(),
        "environment": {
            name: value
            for name, value in sorted(environ.items())
            if name.startswith(_TRAINING_PREFIXES)
            and name not in variables
            and name not in _SET_BY_RAY
            and not any(word in name.upper() for word in _SECRET)
        },
    }


def _is_on_pythonpath(path: str, environ: Mapping[str, str]) -> bool:
    return os.path.isdir(path) and path in environ.get("PYTHONPATH", "").split(os.pathsep)  # noqa: PTH112


def _packages(names: list[str], ours: list[str]) -> dict[str, str | None]:
    """Return the installed versions outside the code tree, whose metadata would count as installed packages."""
    path = [entry for entry in sys.path if entry not in ours]
    found = {}
    for name in names:
        distribution = next(iter(importlib.metadata.distributions(name=name, path=path)), None)
        found[name] = distribution.version if distribution else None
    return found


def tree_id(folder: str) -> str | None:
    """Return the git tree id of a folder, from every byte and mode; None if it can't be read.

    Byte code and the pointer to the workspace's repository are left out. Format: gitformat-pack, "tree".
    """
    found = file_ids(folder)
    return None if found is None else _tree_object_id(_nest(found))


def file_ids(folder: str) -> dict[str, tuple[str, str]] | None:
    """Return the mode and blob id of every file, by path; None if a file can't be read."""
    try:
        paths = list(_walk(folder, ""))
        with ThreadPoolExecutor(_THREADS) as readers:
            return dict(
                zip(paths, readers.map(lambda path: _mode_and_id(f"{folder}/{path}"), paths), strict=True)
            )
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


def _mode_and_id(path: str) -> tuple[str, str]:
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return "120000", _object_id("blob", os.fsencode(os.readlink(path)))  # noqa: PTH115
    if not stat.S_ISREG(status.st_mode):  # reading a pipe would never end
        return "0", ""
    mode = "100755" if status.st_mode & 0o100 else "100644"
    if status.st_size > _READ_LIMIT:
        return mode, _object_id("size", b"%d" % status.st_size)
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        return mode, _object_id("blob", file.read(_READ_LIMIT))


def _nest(found: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for path, entry in found.items():
        *folders, name = path.split("/")
        at = root
        for folder in folders:
            at = at.setdefault(folder, {})
        at[name] = entry
    return root


def _tree_object_id(folder: Mapping[str, Any]) -> str:
    lines = []
    for name, entry in folder.items():
        mode, oid = ("40000", _tree_object_id(entry)) if isinstance(entry, dict) else entry
        raw = os.fsencode(name)
        lines.append(
            (raw + b"/" * isinstance(entry, dict), mode.encode() + b" " + raw + b"\0" + bytes.fromhex(oid))
        )
    return _object_id("tree", b"".join(line for _, line in sorted(lines)))


def _object_id(kind: str, data: bytes) -> str:
    return hashlib.sha1(b"%s %d\0" % (kind.encode(), len(data)) + data, usedforsecurity=False).hexdigest()


def job_logs(job: str, limit: int, total: int) -> dict[str, bytes]:
    """Return the ends of the logs of a job's Ray workers on this node."""
    import ray

    return log_ends(ray._private.worker.global_worker.node.get_logs_dir_path(), job, limit, total)


def log_ends(folder: str, job: str, limit: int, total: int) -> dict[str, bytes]:
    """Return the ends of a job's logs in a folder, by name, compressed with zlib.

    A log that is cut says so in its first line.

    Args:
        folder: Ray's folder of logs.
        job: The job's id.
        limit: Greatest number of bytes of one log.
        total: Greatest number of bytes of all logs; short ones are whole, and the long ones share what is left.
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
        share = min(limit, total // (len(found) - number))
        total -= min(size, share)
        if size:
            taken[name] = zlib.compress(_read_end(f"{folder}/{name}", size, share))
    return taken


def _read_end(path: str, size: int, limit: int) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123
        if size <= limit:
            return file.read(limit)
        file.seek(size - limit)
        return b"[npu-rl: %d bytes before this are left out]\n" % (size - limit) + file.read(limit)
