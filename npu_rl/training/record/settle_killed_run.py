"""Completion of the record of an attempt whose npu-rl was killed, from its files."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections import Counter

from npu_rl.common.bounded import parse_yaml, read_file, read_json
from npu_rl.common.disk import remove_tree
from npu_rl.common.masking import Secrets
from npu_rl.training.monitor.metrics import MetricsWriter, read_metrics
from npu_rl.training.monitor.step_lines import StepLines
from npu_rl.training.monitor.tail import Tail, require_bounded_log
from npu_rl.training.record.attempt import LARGEST_RECIPE, Attempt
from npu_rl.training.record.temporary_folders import remaining_folders, remove_remaining
from npu_rl.training.record.worker_logs import keep_worker_logs

_Key = tuple[int, tuple[tuple[str, str], ...]]


def complete_record(attempt: Attempt, run_id: str, secrets: Secrets) -> None:
    """Complete the record of an attempt as `killed`. The run must not have live processes.

    The driver may have continued after npu-rl was killed: its steps are read from its log, and its workers'
    logs are copied from Ray's folder, which is then removed. An interrupted call can be repeated.

    Args:
        secrets: Those known now; other values are masked only by name.
    """
    recover_metrics(attempt)
    for folder in remaining_folders(run_id):
        keep_worker_logs(folder, attempt.workers)
    attempt.mask_secrets(secrets)
    _remove_unfinished_models(attempt)
    remove_remaining(run_id)
    attempt.end("killed", None, ended=_log_time(attempt))


def recover_metrics(attempt: Attempt) -> int:
    """Add the steps in the driver's log that metrics.jsonl lacks, with the log's time. Returns their number."""
    require_bounded_log(attempt.driver_log)
    step_lines = _step_lines(attempt)
    known = Counter(_key(point.step, point.data) for point in read_metrics(attempt.metrics))
    missing = []
    for line in Tail(attempt.driver_log).lines():
        found = step_lines.parse(line)
        if found is None:
            continue
        if known[_key(*found)] > 0:
            known[_key(*found)] -= 1
        else:
            missing.append(found)
    if missing:
        with MetricsWriter(attempt.metrics) as writer:
            for step, data in missing:
                writer.write(step, data, _log_time(attempt))
    return len(missing)


def _step_lines(attempt: Attempt) -> StepLines:
    """Return the format of the metrics in an attempt's log, from its recipe; verl's if that can't be read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        trainer = parse_yaml(read_file(attempt.folder / "recipe.yaml", LARGEST_RECIPE).decode())["trainer"]
        names = trainer.get("metrics") or {}
        return StepLines(trainer.get("log") == "iterations", {str(k): str(v) for k, v in names.items()})
    return StepLines()


def _key(step: int, data: dict[str, float]) -> _Key:
    return step, tuple(sorted((name, repr(value)) for name, value in data.items()))


def _log_time(attempt: Attempt) -> float | None:
    """Return the time of the last write to the driver's log."""
    try:
        return attempt.driver_log.stat().st_mtime
    except OSError:
        return None


def _remove_unfinished_models(attempt: Attempt) -> None:
    """Remove the folders of unfinished tiny models, which are named after the process id of their npu-rl."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, OverflowError):
        launcher = int(read_json(attempt.folder / "command.json")["launcher"])
        host = read_json(attempt.folder / "host.json")["hostname"]
        place = attempt.folder.parents[2] / ".made"
        if host != socket.gethostname() or _is_alive(launcher) or place.is_symlink():
            return
        begun = re.compile(rf"[0-9a-f]{{16}}(-[0-9]+)?(-checkpoint-[0-9a-f]{{16}}(-[0-9]+)?)?\.{launcher}")
        for folder in place.iterdir():
            if begun.fullmatch(folder.name) and not folder.is_symlink():
                remove_tree(folder)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
