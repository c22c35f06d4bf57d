"""Adaptation weight-transfer-deadline: a weight sync raises an error if its other end is dead, instead of hanging.

verl's trainer sends weights to vLLM's workers through a ZeroMQ socket, bucket by bucket, and both wait without a limit
(verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py:167@v0.8.0). If an engine's worker is killed, the
trainer's rank waits forever, and the other ranks wait for it.

NPU_RL_WEIGHT_TRANSFER_SECONDS limits each wait, not the whole sync. It is 1800 by default, like torch's timeout of a
gloo collective. The longest wait of a healthy sync is that for the first bucket, while the engine wakes up.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

from .switches import enabled
from .used import count

SLUG = "weight-transfer-deadline"
_VARIABLE, _SECONDS = "NPU_RL_WEIGHT_TRANSFER_SECONDS", 1800.0


def socket(context: Any, kind: int, address: str) -> Any:
    """Return a zmq.REQ socket (the trainer's) or zmq.REP socket (the engine's) with a limit on each wait.

    Its `send` and `recv`, and pyzmq's methods that use them, raise TimeoutError at the limit. While the adaptation is
    off, the socket is upstream's `context.socket(kind)`.
    """
    if not enabled(SLUG):
        return context.socket(kind)
    zmq: Any = import_module("zmq")
    seconds = _seconds()
    count(SLUG)
    other = "vLLM's worker" if kind == zmq.REQ else "the trainer's rank"

    class LimitedSocket(zmq.Socket):  # type: ignore[misc]
        def send(self, *args: Any, **options: Any) -> Any:
            return self._limited(super().send, "take", *args, **options)

        def recv(self, *args: Any, **options: Any) -> Any:
            return self._limited(super().recv, "send", *args, **options)

        def _limited(self, wait: Callable[..., Any], did: str, *args: Any, **options: Any) -> Any:
            try:
                return wait(*args, **options)
            except zmq.Again as error:
                self.linger = 0  # or the process could not end, for what the other end never takes
                raise TimeoutError(
                    f"weight sync: {other} at {address} did not {did} anything for {seconds:g} s. It has died, or "
                    f"hangs: its own log has the first error. {_VARIABLE} is the limit of one wait, in seconds; "
                    f"NPU_RL_WEIGHT_TRANSFER_DEADLINE=0 waits forever, as upstream does."
                ) from error

    found = context.socket(kind, socket_class=LimitedSocket)
    found.rcvtimeo = found.sndtimeo = round(seconds * 1000)
    return found


def unlink(memory: Any) -> None:
    """Remove the shared memory of a sync, like `memory.unlink()`.

    If the other end has died, its resource tracker (multiprocessing) has already removed the memory that it attached.
    The FileNotFoundError of a second removal would hide the sync's own error.
    """
    try:
        memory.unlink()
    except FileNotFoundError:
        if not enabled(SLUG):
            raise


def _seconds() -> float:
    text = os.environ.get(_VARIABLE, "").strip()
    try:
        seconds = float(text) if text else _SECONDS
    except ValueError:
        seconds = 0.0
    if not 0.001 <= seconds <= 1e6:
        raise ValueError(f"{_VARIABLE}={text!r}: write a number of seconds above 0")
    return seconds
