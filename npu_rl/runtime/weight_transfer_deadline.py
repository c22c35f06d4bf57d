"""Adaptation weight-transfer-deadline: a weight sync whose other end is dead is an error, not a hang.

verl's trainer and vLLM's workers hand over weights by a ZeroMQ socket, bucket by bucket, and wait for each other
without a limit (verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py:167@v0.8.0). If a worker of the engine is
killed, the trainer's rank waits for ever, and the other ranks for it.

The limit is for one wait, not for the sync: NPU_RL_WEIGHT_TRANSFER_SECONDS, 1800 by default, which is torch's default
for a collective of gloo. The longest wait of a healthy sync is that for the first bucket, for the engine to wake up.
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
    """Return a socket of the kind zmq.REQ (the trainer's) or zmq.REP (the engine's), whose waits have a limit.

    Its `send` and `recv`, and what pyzmq builds on them, raise TimeoutError at the limit. While the adaptation is
    switched off, the socket is `context.socket(kind)`, as upstream has it.
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
                    f"NPU_RL_WEIGHT_TRANSFER_DEADLINE=0 waits for ever, as upstream does."
                ) from error

    found = context.socket(kind, socket_class=LimitedSocket)
    found.rcvtimeo = found.sndtimeo = round(seconds * 1000)
    return found


def unlink(memory: Any) -> None:
    """Remove the shared memory of a sync, as `memory.unlink()`.

    Where the other end has died it is gone: multiprocessing's resource tracker of that process removes what it had
    attached. The FileNotFoundError of a second removal would hide the error of the sync.
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
