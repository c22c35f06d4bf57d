"""Child processes of the rehearsal in the training interpreter."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from npu_rl.common.errors import HostError, NpuRlError
from npu_rl.common.process import RUN_VARIABLE, run_quietly
from npu_rl.common.python_roots import REHEARSAL
from npu_rl.training.record.temporary_folders import run_folder

_CHILD_PROGRAM = REHEARSAL / "npu_rl_rehearsal"
_LAST_LINES = 20  # lines of a failed child's output that an error shows

# No downloads, no telemetry, one thread per process, and gloo only on this machine.
_LOCAL_ONLY = {
    "HF_HUB_OFFLINE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}


@dataclass(frozen=True)
class TrainingChild:
    """The training interpreter, as the levels run their own programs in it.

    Attributes:
        code: The code folder.
        python: The interpreter's path.
        environment: The whole environment of the training processes, with the run's id.
    """

    code: Path
    python: Path
    environment: Mapping[str, str]

    def run(
        self, level: Literal["imports", "groups", "model", "sources"], job: Mapping[str, Any], limit: float
    ) -> list[dict[str, Any]]:
        """Run a level's program, and return the JSON lines it wrote.

        It has a working and temporary folder of its own, which is removed.

        Args:
            job: Its input, as JSON.
            limit: Seconds.

        Raises:
            NpuRlError: If the child as a whole fails; faults of the tree are in its lines.
            HostError: If this is not Linux, whose way of waiting for forks the children need.
        """
        if not sys.platform.startswith("linux"):
            raise HostError(f"The check of {level} needs Linux", why=f"this is {sys.platform}")
        with run_folder(self.environment[RUN_VARIABLE], f"-{level}") as place:
            folder = place.resolve()
            (folder / "work").mkdir()
            (folder / "byte-code").mkdir()
            job_file, result_file = folder / "job.json", folder / "result.jsonl"
            request = {**job, "code": str(self.code.resolve()), "byte_code": str(folder / "byte-code")}
            job_file.write_text(json.dumps(request), encoding="utf-8")
            done = run_quietly(
                [str(self.python), str(_CHILD_PROGRAM), level, str(job_file), str(result_file)],
                env=child_environment(self.environment, self.code, folder / "work"),
                cwd=folder / "work",
                timeout=limit,
            )
            lines = result_file.read_text(encoding="utf-8").splitlines() if result_file.is_file() else []
        if done.code != 0:
            last = (done.stderr or done.stdout).strip().splitlines()[-_LAST_LINES:]
            raise NpuRlError(
                f"The check of {level} did not finish",
                where=str(self.python),
                why="\n".join(last) or f"it ended with status {done.code}",
                hint="Run it with the interpreter of the recipe's manifest: --python PATH",
            )
        return [json.loads(line) for line in lines]


def child_environment(environment: Mapping[str, str], code: Path, scratch: Path) -> dict[str, str]:
    """Return a child's environment: tree on PYTHONPATH, no bytecode beside sources, temporary files in `scratch`."""
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if str(code.resolve()) not in {str(Path(path).resolve()) for path in paths}:
        paths.append(str(code.resolve()))
    return {
        **environment,
        **_LOCAL_ONLY,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(scratch),
    }
