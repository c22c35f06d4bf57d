"""How a rehearsal without a verdict ended. Its levels imports and layout have no attempt, so its run has the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from npu_rl.common.errors import HostError
from npu_rl.common.masking import Secrets
from npu_rl.training.record.attempt import now, read_object, recorded_error, write_json

REHEARSAL_END = "rehearsal-end.json"


@contextmanager
def end_recorded(folder: Path, secrets: Secrets) -> Iterator[None]:
    """Record the end of a rehearsal whose block ends in an error: "failed" with the error, or "stopped" by a signal.

    Args:
        folder: The rehearsal's folder of run records.
        secrets: Masked in the error.
    """
    try:
        yield
    except BaseException as error:
        with suppress(OSError, HostError):  # the error itself is what counts
            write_json(folder / REHEARSAL_END, _end(error, secrets))
        raise


def _end(error: BaseException, secrets: Secrets) -> dict[str, Any]:
    end: dict[str, Any] = {"outcome": "stopped", "ended": now()}
    if not isinstance(error, Exception) or getattr(error, "exit_code", 1) >= 128:
        return end
    return {**end, "outcome": "failed", "error": recorded_error(error, secrets)}


def rehearsal_error(folder: Path) -> dict[str, str]:
    """Return the recorded error of a failed rehearsal (what, where, why, hint); empty of others."""
    return dict(read_object(folder / REHEARSAL_END, optional=True).get("error", {}))


def rehearsal_outcome(folder: Path) -> str | None:
    """Return "failed" or "stopped"; None if that was not recorded."""
    return read_object(folder / REHEARSAL_END, optional=True).get("outcome")
