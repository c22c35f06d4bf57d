"""The code that runs on a Ray cluster's hosts: host facts, and the tasks. Ray ships this package there."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .tensor_error import TensorError
from .worker import prepare, work


def look(folders: Sequence[str], output: str | None, token: str, name: str) -> dict[str, Any]:
    """Return the facts about this host that the driver compares.

    Args:
        folders: Those that tasks read.
        output: The folder that tasks write to: the file of the token is read there, and one with this host's written.
        token: The content of both files.
        name: Name of this host, which its file's name contains.
    """
    return {
        "python": platform.python_version(),
        "torch": _torch_version(),
        "folders": {folder: fingerprint(folder) for folder in folders},
        "output": None if output is None else _answer_probe(Path(output), token, name),
    }


def fingerprint(folder: str) -> str | None:
    """Return a digest of the names and sizes of all files in a folder; None if the folder is missing."""
    root = Path(folder)
    if not root.is_dir():
        return None
    found = []
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            try:
                found.append(f"{path.relative_to(root)} {path.stat().st_size}")
            except OSError as error:
                found.append(f"{path.relative_to(root)} {error.errno}")
    return hashlib.sha256("\n".join(sorted(found)).encode("utf-8", "surrogateescape")).hexdigest()


def probe(output: Path, token: str, name: str = "") -> Path:
    """Return the file that proves that hosts share a folder. If left behind, it is removed like an unfinished file."""
    return output / f".npu-rl-probe-{token}{name}.part"


def run_task(name: str, arguments: dict[str, Any], threads: int) -> dict[str, Any]:
    """Run a task of worker.TASKS. Returns its last event with `bytes`, its total progress."""
    count, answer = 0, {}

    def say(event: str, **fields: Any) -> None:
        nonlocal count, answer
        if event == "progress":
            count += fields["bytes"]
        else:
            answer = {"event": event, **fields}

    try:
        prepare(threads)
    except TensorError as error:
        return {"event": "error", **vars(error), "bytes": 0, "node": _node()}
    work({"task": name, "arguments": arguments}, say)
    return {**answer, "bytes": count, "node": _node()}


def _node() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


def _torch_version() -> str | None:
    try:
        import torch
    except ImportError:
        return None
    return str(torch.__version__)


def _answer_probe(output: Path, token: str, name: str) -> str:
    """Check the shared folder. Returns a description of the problem, or an empty string."""
    try:
        if probe(output, token).read_text() != token:
            return "it has another file of that name"
        probe(output, token, name).write_text(token)
    except FileNotFoundError:
        return "a file written on another host is not there"
    except OSError as error:
        return str(error.strerror)
    return ""
