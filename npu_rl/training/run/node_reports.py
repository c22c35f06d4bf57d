"""Reports of the nodes in a run's Ray cluster: their differences, and the logs of their workers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from npu_rl.common.bounded import read_json
from npu_rl.common.errors import HostError
from npu_rl.common.process import run_quietly
from npu_rl.training.record.attempt import Attempt
from npu_rl.training.run.tiny_model import MAKER_ENVIRONMENT

_FETCH_TIMEOUT = 60.0  # seconds in which the logs of a cluster are fetched


def fetch_worker_logs(attempt: Attempt, python: str, environment: Mapping[str, str]) -> None:
    """Fetch the logs of the run's workers to workers/HOST/, if Ray was running before the run.

    A process in the training interpreter asks each node of the cluster for the logs of the run's job. Its error, if
    there is one, is written to workers/not-fetched.txt. The logs of a Ray that the run started are on this machine
    already.
    """
    address, job = _cluster_address(environment), _read_report(attempt).get("job")
    if address is None or not isinstance(job, str):
        return
    try:
        finished = run_quietly(
            [python, "-m", "npu_rl_logs", address, job, str(attempt.workers)],
            {**environment, **MAKER_ENVIRONMENT, "NPU_RL_STANDINS": ""},
            attempt.folder,
            _FETCH_TIMEOUT,
        )
        error_text = finished.stderr.strip()[-2000:] if finished.code else ""
    except HostError as error:
        error_text = str(error)
    if error_text:
        with contextlib.suppress(OSError):
            (attempt.workers / "not-fetched.txt").write_text(error_text + "\n", encoding="utf-8")


def _cluster_address(environment: Mapping[str, str]) -> str | None:
    """Return the address of the Ray that was running before, or None if the run starts its own."""
    address = json.loads(environment.get("NPU_RL_RAY", "{}")).get("address", "local")
    return None if address == "local" else str(address)


def _read_report(attempt: Attempt) -> dict[str, Any]:
    try:
        refused = read_json(attempt.nodes)
    except (OSError, ValueError):
        return {}
    return refused if isinstance(refused, dict) else {}
