"""What the nodes of a run's cluster had to say: differences before it began, its workers' logs afterwards."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from npu_rl.errors import HostError
from npu_rl.printable import printable
from npu_rl.training.attempt import Attempt
from npu_rl.training.process import run_quietly
from npu_rl.training.tiny_model import MAKERS_OWN

_LIMIT = 60.0  # seconds in which the logs of a cluster are fetched


def refusal(attempt: Attempt) -> HostError | None:
    """Why the driver did not start the trainer, if it was for what its nodes have."""
    told = _nodes(attempt).get("refused")
    if not isinstance(told, dict):
        return None
    what, where, why, hint = (printable(str(told.get(name, ""))) for name in ("what", "where", "why", "hint"))
    return HostError(what, where=where, why=why, hint=hint)


def fetch_worker_logs(attempt: Attempt, python: str, environment: Mapping[str, str]) -> None:
    """Fetch the logs of the run's workers from the nodes of a Ray that was there before, however the driver ended.

    A process of its own, in the training interpreter, asks each node for those of the run's job, and writes them to
    workers/HOST/. What can't be had is told in workers/not-fetched.txt. A Ray of the run's own has them here.
    """
    address, job = _address(environment), _nodes(attempt).get("job")
    if address is None or not isinstance(job, str):
        return
    try:
        finished = run_quietly(
            [python, "-m", "npu_rl_logs", address, job, str(attempt.workers)],
            {**environment, **MAKERS_OWN, "NPU_RL_STANDINS": ""},
            attempt.folder,
            _LIMIT,
        )
        said = finished.stderr.strip()[-2000:] if finished.code else ""
    except HostError as error:
        said = str(error)
    if said:
        with contextlib.suppress(OSError):
            (attempt.workers / "not-fetched.txt").write_text(said + "\n", encoding="utf-8")


def _address(environment: Mapping[str, str]) -> str | None:
    """That of a Ray which is not the run's own."""
    address = json.loads(environment.get("NPU_RL_RAY", "{}")).get("address", "local")
    return None if address == "local" else str(address)


def _nodes(attempt: Attempt) -> dict[str, Any]:
    try:
        told = json.loads(attempt.nodes.read_bytes())
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}
