"""Kill the engine's side of a weight sync after its first bucket, and check whether the trainer's side ends.

Two processes of their own run verl's BucketedWeightSender and BucketedWeightReceiver
(verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py) over their ZeroMQ socket, with shared memory as on
NPUs without IPC. First comes a sync in which nobody dies: the tensors that arrive are those sent. Where a limit can
be set, it is 20 seconds; the sender is watched for 60, which a busy machine needs to end its process.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from witness_common import make_packages, show

LIMIT, WATCHED = 20, 60  # seconds
BUCKET_MB, TENSORS = 1, 4  # a tensor is more than half a bucket


def transfer(*later: str) -> Any:
    """Import the module without its packages, which import vLLM and Ray, then wait for the other process.

    verl 0.9 knows CUDA, ROCm and NPUs; the device that it synchronizes with is the CPU here.
    """
    import torch

    make_packages("verl", "verl.workers", "verl.workers.rollout", "verl.workers.rollout.vllm_rollout")
    found = importlib.import_module("verl.workers.rollout.vllm_rollout.bucketed_weight_transfer")
    for name in later:  # which it imports as it goes
        importlib.import_module(name)
    found.get_torch_device = lambda: torch.cpu
    found.is_support_ipc = lambda: False
    print("ready", flush=True)
    sys.stdin.readline()
    return found


def weights() -> Iterator[tuple[str, Any]]:
    import torch

    for number in range(TENSORS):
        yield f"layer.{number}", torch.full((200_000,), float(number))


def digest(found: list[tuple[str, Any]]) -> str:
    text = b"".join(name.encode() + tensor.numpy().tobytes() for name, tensor in found)
    return hashlib.sha256(text).hexdigest()


def send(folder: str) -> None:
    """Act as the trainer's rank in two syncs."""
    sender = transfer("verl.workers.rollout.utils").BucketedWeightSender
    for handle in handles(folder):
        try:
            asyncio.run(sender(handle, bucket_size_mb=BUCKET_MB, use_shm=True).async_send_weights(weights()))
            print(digest(list(weights())), flush=True)
        except (OSError, RuntimeError) as error:  # TimeoutError is of the first
            print(f"{type(error).__name__}: {error}", flush=True)


def receive(folder: str) -> None:
    """Act as vLLM's worker, which completes the first sync and dies after the first bucket of the second."""
    import torch

    received: list[tuple[str, Any]] = []
    receiver = transfer().BucketedWeightReceiver
    healthy, dies = (receiver(handle, torch.device("cpu"), use_shm=True) for handle in handles(folder))
    healthy.receive_weights(lambda tensors, *_: received.extend((name, one.clone()) for name, one in tensors))
    print(digest(received), flush=True)
    dies.receive_weights(lambda *_: os.kill(os.getpid(), signal.SIGKILL))


def handles(folder: str) -> list[str]:
    return [f"ipc://{folder}/{name}.sock" for name in ("healthy", "dies")]


def start(role: str, folder: str) -> Any:
    """Start the process of one side."""
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", __file__, role, folder], text=True,
        env={"NPU_RL_WEIGHT_TRANSFER_SECONDS": str(LIMIT), **os.environ},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip


def main() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="sync-") as folder:
        sender, receiver = start("send", folder), start("receive", folder)
        for process in (sender, receiver):
            while process.stdout.readline() not in ("ready\n", ""):
                pass
        for process in (sender, receiver):
            process.stdin.write("\n")
            process.stdin.flush()
        if sender.stdout.readline() != receiver.stdout.readline():
            receiver.kill()
            raise RuntimeError("a sync without a dead process fails")
        receiver.wait()
        try:
            error, _ = sender.communicate(timeout=WATCHED)
        except subprocess.TimeoutExpired:
            sender.kill()
            sender.communicate()
            return {"fault": True, "still waiting after seconds": WATCHED}
    return {"fault": False, "error": error.strip()}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        {"send": send, "receive": receive}[sys.argv[1]](sys.argv[2])
    else:
        show(main)
