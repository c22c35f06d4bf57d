"""A trainer with ranks that hangs in one of five ways, run by npu_rl_driver; HANG_PLAN=PLACE,KIND,STEPS,SLOW,WORK.

Ranks are Ray actors that meet in gloo's collectives, as verl's are. KIND is none, or what goes wrong in the step before
the last, in rank 1 (of two):

stopped   it is stopped            loop      it runs in circles
left      it returns early, from a collective that the other is in
reward    the reward function of the trainer waits on a socket
receiver  the process that receives rank 1's weights is killed, and rank 1 waits for it

WORK: seconds of generation and of update, a quarter more or less. SLOW: seconds of the save and of the validation that
come every third step.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any

import ray

WORLD = 2
ODD = WORLD - 1
RECEIVER = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)\nsys.stdin.read()"


class Rank:
    """One rank, with a process that receives its weights."""

    def __init__(self, place: str) -> None:
        import torch.distributed

        self.rank = int(os.environ["RANK"])
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{place}/store",
            rank=self.rank,
            world_size=WORLD,
            timeout=timedelta(hours=1),
        )
        command = [sys.executable, "-c", RECEIVER]
        self.receiver = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.held = socket.socketpair()

    def ready(self) -> None:
        """Return once the rank has been made."""

    def generate(self, kind: str, work: float) -> float:
        """Take the weights, and generate."""
        time.sleep(work * random.uniform(0.75, 1.25))
        self.send_weights(kind)
        return self.meet(kind)

    def send_weights(self, kind: str) -> None:
        """Give the weights to the receiver, and wait until it has them."""
        assert self.receiver.stdin is not None and self.receiver.stdout is not None
        if kind == "receiver" and self.rank == ODD:
            self.receiver.kill()
            self.held[0].recv(1)  # what a queue in shared memory does: nobody says that the other end is gone
        self.receiver.stdin.write("weights\n")
        self.receiver.stdin.flush()
        self.receiver.stdout.readline()

    def meet(self, kind: str) -> float:
        """Add up the ranks."""
        import torch

        total = torch.ones(4)
        if self.rank == ODD:
            if kind == "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            if kind == "loop":
                run_in_circles()
            if kind == "left":
                return 0.0
        torch.distributed.all_reduce(total)
        return float(total[0])


def run_in_circles() -> None:
    """Never return."""
    number = 0
    while True:
        number = number + 1 if number < 1000 else 0


def score_on_a_server(kind: str) -> None:
    """Score responses, by a server that does not answer if that is what goes wrong."""
    ours, theirs = socket.socketpair()
    if kind != "reward":
        theirs.send(b"1")
    ours.recv(1)


@ray.remote(num_cpus=0)
class Trainer:
    """verl's TaskRunner."""

    def run(self, place: str, kind: str, steps: int, slow: float, work: float) -> None:
        """Train."""
        made = ray.remote(num_cpus=0)(Rank)
        ranks = [
            made.options(runtime_env={"env_vars": {"RANK": str(rank), "WORLD_SIZE": str(WORLD)}}).remote(
                place
            )
            for rank in range(WORLD)
        ]
        ray.get([rank.ready.remote() for rank in ranks])  # as verl's init_workers, before the first step
        for step in range(1, steps + 1):
            self.step(
                ranks, step, kind if step == steps - 1 else "none", slow if step % 3 == 0 else 0.0, work
            )

    def step(self, ranks: list[Any], step: int, kind: str, slow: float, work: float) -> None:
        """Do one step."""
        ray.get([rank.generate.remote(kind, work) for rank in ranks])
        score_on_a_server(kind)
        ray.get([rank.generate.remote("none", work) for rank in ranks])
        time.sleep(2 * slow)
        print(f"step:{step} - critic/score/mean:{step / 1000} - actor/grad_norm:0.5", flush=True)


def main() -> None:
    """Train in an actor of its own, as verl does."""
    place, kind, steps, slow, work = os.environ["HANG_PLAN"].split(",")
    trainer = Trainer.remote()  # type: ignore[attr-defined]
    ray.get(trainer.run.remote(place, kind, int(steps), float(slow), float(work)))


if __name__ == "__main__":
    main()
