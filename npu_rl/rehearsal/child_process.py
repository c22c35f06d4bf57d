"""Running one of the rehearsal's children in the training interpreter."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from npu_rl.errors import HostError, NpuRlError
from npu_rl.standins import INJECTED
from npu_rl.training.process import RUN_VARIABLE, run_quietly
from npu_rl.training.temporary_folders import run_folder

_CHILDREN = INJECTED / "npu_rl_rehearsal"
_LAST_WORDS = 20  # lines of a failed child's output that are shown

# Nothing is fetched, nobody is told, one thread per process, and gloo stays on this machine.
_QUIET = {
    "HF_HUB_OFFLINE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}


def run_child(
    level: Literal["imports", "groups", "model"],
    job: Mapping[str, Any],
    *,
    code: Path,
    python: Path,
    environment: Mapping[str, str],
    limit: float,
) -> list[dict[str, Any]]:
    """Run one level's child on `job` and return the lines it wrote.

    `environment` is the whole environment of the training processes, with their run's id; the tree is put on its
    PYTHONPATH if it is not there. The child's working and temporary folder is one of its own, and is removed. `limit`
    is in seconds. Raises NpuRlError if the child fails as a whole; what it finds about the tree is in its lines. Raises
    HostError on anything but Linux: the children wait for their forks in a way that only Linux has on every Python.
    """
    if not sys.platform.startswith("linux"):
        raise HostError(f"The rehearsal of {level} needs Linux", why=f"this is {sys.platform}")
    with run_folder(environment[RUN_VARIABLE], f"-{level}") as place:
        folder = place.resolve()
        (folder / "work").mkdir()
        (folder / "byte-code").mkdir()
        given, found = folder / "job.json", folder / "result.jsonl"
        told = {**job, "code": str(code.resolve()), "byte_code": str(folder / "byte-code")}
        given.write_text(json.dumps(told), encoding="utf-8")
        done = run_quietly(
            [str(python), str(_CHILDREN), level, str(given), str(found)],
            env=child_environment(environment, code, folder / "work"),
            cwd=folder / "work",
            timeout=limit,
        )
        lines = found.read_text(encoding="utf-8").splitlines() if found.is_file() else []
        if done.code != 0:
            raise NpuRlError(
                f"The rehearsal of {level} did not finish",
                where=str(python),
                why=_last_words(done.stderr or done.stdout) or f"it ended with status {done.code}",
                hint="run it with the interpreter the recipe's manifest asks for (--python)",
            )
    return [json.loads(line) for line in lines]


def child_environment(environment: Mapping[str, str], code: Path, scratch: Path) -> dict[str, str]:
    """`environment` for a child: the tree on PYTHONPATH, no byte code beside sources, temporary files in `scratch`."""
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if str(code.resolve()) not in {str(Path(path).resolve()) for path in paths}:
        paths.append(str(code.resolve()))
    return {
        **environment,
        **_QUIET,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(scratch),
    }


def _last_words(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-_LAST_WORDS:])
