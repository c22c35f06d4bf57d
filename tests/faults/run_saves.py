"""Save with a tree's own checkpoint manager on two gloo ranks, cut the save off, and go on.

    python run_saves.py VERL STRATEGY OLD FOLDER SEED...

VERL: the folder of the package verl; Megatron-core is on the path. OLD: 1 for verl 54c9b73. For each SEED a run of four
saves in FOLDER/SEED, of which the fourth is cut off. The trainer's number of checkpoints is two.
A seed "kill...-N" chooses a rank, and one of the calls by which it and its children change FOLDER/SEED in a save: as
many as the third save had, and among the N-th fifth of them. Before that call of the fourth the rank ends as by
kill -9: with its children and the other rank, or alone, and the others go on for some seconds.
The processes are forks of this one, so that torch is imported once. Then `npu_rl.training.run.resume_point` chooses the
step of each run; two new ranks load it where verl's own find_latest_ckpt_path points to, compare every value, and save
the next step over what is there.

Prints JSON: a list of {seed, steps, resumed, found, next, error, ...}: what is wrong with each step; the step that is
resumed from and verl's; what is wrong with the next once it is saved anew; {rank, alone, calls, call, signal, within}.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from npu_rl.training.record.run_record import RunRecord
from npu_rl.training.record.saved_checkpoints.saved_steps import RoleFiles, SavedLayout, saved_steps
from npu_rl.training.run.resume_point import ResumePoint, go_on_from
from tests.faults.saved_state import State, imported
from tests.faults.tracer import Tracer

SAVES = 4  # the third is counted, the fourth is cut off
_LATER = 3.0  # seconds for the ranks that were not killed


def main(verl: str, strategy: str, old: str, folder: str, *seeds: str) -> list[dict[str, Any]]:
    imported(Path(verl), strategy)
    expert = 2 if old == "1" else 1
    kind: Any = "fsdp" if strategy == "fsdp" else "legacy" if old == "1" else "torch_dist"
    layout = SavedLayout((RoleFiles("actor", kind, sizes=(1, 1, 1, expert)),), 2, 2)
    ranks = Ranks(Path(verl), strategy, old == "1")
    found = []
    for seed in seeds:
        run = run_of(folder, seed)
        run.mkdir(parents=True)
        one: dict[str, Any] = {"seed": seed} | killed(ranks, run, seed)
        (run / "store").unlink(missing_ok=True)
        steps = saved_steps(run, layout)
        found.append(one | {"steps": steps} | chosen(run, steps))
    able = [(run_of(folder, one["seed"]), one["resumed"]) for one in found if one["resumed"]]
    codes = ended([forked(ranks.go_on, rank, Path(folder), able) for rank in range(2)], 300)
    for one in found:
        after = saved_steps(run_of(folder, one["seed"]), layout)
        one["error"] = "" if codes == [0, 0] else f"the ranks that loaded ended with {codes}"
        if one["resumed"]:
            one["next"] = after.get(one["resumed"] + 1, "is missing")
    return found


def run_of(folder: str, seed: str) -> Path:
    return Path(folder, seed, "checkpoints")


def chosen(run: Path, steps: dict[int, str]) -> dict[str, Any]:
    """Do what `--resume` does: the newest whole step becomes the one that the trainer reads."""
    whole = [step for step, fault in steps.items() if not fault]
    if not whole:
        return {"resumed": None, "found": None}
    newest = max(whole)
    newer = tuple(f"step {step} is not whole: {fault}" for step, fault in steps.items() if step > newest)
    go_on_from(
        RunRecord(run.parent, {"name": "cut", "id": "0" * 32}), ResumePoint(newest, newer), lambda _: None
    )
    tracked: Any = importlib.import_module("verl.utils.checkpoint.checkpoint_manager")
    return {"resumed": newest, "found": Path(tracked.find_latest_ckpt_path(str(run))).name}


def forked(function: Callable[..., None], *arguments: Any) -> int:
    pid = os.fork()
    if pid == 0:
        os.setsid()  # Megatron-core's writers are processes of their own: a rank ends with all of them
        try:
            function(*arguments)
            sys.stdout.flush()
            os._exit(0)
        except BaseException:  # noqa: BLE001  a fork never returns
            traceback.print_exc()
            os._exit(1)
    return pid


def ended(ranks: list[int], seconds: float) -> list[int | None]:
    """Return how each rank ended by itself within these seconds, and some after a failure; all end."""
    codes: dict[int, int] = {}
    deadline = time.monotonic() + seconds
    while len(codes) < len(ranks) and time.monotonic() < deadline:
        for pid in set(ranks) - set(codes):
            try:
                done, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # a tracer has waited for it
                codes[pid] = 1
                continue
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
                if codes[pid]:
                    deadline = min(deadline, time.monotonic() + _LATER)
        time.sleep(0.002)
    for pid in ranks:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        if pid not in codes:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
    return [codes.get(pid) for pid in ranks]


class Ranks:
    """What the processes of a run do."""

    def __init__(self, verl: Path, strategy: str, old: bool) -> None:
        self.strategy, self.old = strategy, old
        self.save_step = of_trainer(verl)

    def join(self, rank: int, store: Path) -> None:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
        if self.strategy == "megatron":
            from megatron.core import mpu, tensor_parallel

            mpu.initialize_model_parallel(expert_model_parallel_size=2 if self.old else 1)
            tensor_parallel.model_parallel_cuda_manual_seed(1)

    def save(self, rank: int, run: Path, pipe: Pipe | None = None) -> None:
        """Save four times; say to a tracer when the last two begin and end."""
        self.join(rank, run / "store")
        state = State(self.strategy, self.old, run)
        for step in range(1, SAVES + 1):
            state.train(step)
            if step == SAVES - 1 and pipe:
                pipe.wait_for_tracer()
            dist.barrier()
            if pipe and step >= SAVES - 1:
                pipe.say(b"b")
            self.one_save(state, rank, run, step)
            if pipe and step >= SAVES - 1:
                pipe.say(b"e")

    def one_save(self, state: State, rank: int, run: Path, step: int) -> None:
        """A step's save, by the trainer's own function on rank 0; the other rank is a worker only."""

        def workers(path: str, _remote: None, number: int, max_ckpt_to_keep: int | None) -> None:
            state.manager.save_checkpoint(path, global_step=number, max_ckpt_to_keep=max_ckpt_to_keep)
            dist.barrier()

        if rank:
            workers(str(run / f"global_step_{step}" / "actor"), None, step, 2)
            return
        trainer = {
            "default_local_dir": str(run),
            "default_hdfs_dir": None,
            "max_actor_ckpt_to_keep": 2,
        }
        self.save_step(
            SimpleNamespace(
                config=SimpleNamespace(trainer=_Config(trainer)),
                global_steps=step,
                use_critic=False,
                actor_rollout_wg=SimpleNamespace(save_checkpoint=workers),
                train_dataloader=SimpleNamespace(state_dict=lambda: {"step": step}),
            )
        )

    def go_on(self, rank: int, folder: Path, runs: list[tuple[Path, int]]) -> None:
        """Load the step of each run, compare, train and save the next one over what is there."""
        self.join(rank, folder / "store")
        for run, step in runs:
            state = State(self.strategy, self.old, run)
            state.train(99)
            state.manager.load_checkpoint(str(run / f"global_step_{step}" / "actor"))
            state.compare(step)
            dist.barrier()
            state.train(step + 1)
            self.one_save(state, rank, run, step + 1)
            dist.barrier()


class _Config(dict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        return self[name]


def of_trainer(verl: Path) -> Callable[[Any], None]:
    """RayPPOTrainer._save_checkpoint of the tree, without its module, which needs Ray."""
    source = (verl / "trainer" / "ppo" / "ray_trainer.py").read_text()
    (found,) = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == "_save_checkpoint"
    ]
    names: dict[str, Any] = {"os": os, "torch": torch}
    exec(compile(ast.Module([found], []), "ray_trainer.py", "exec"), names)
    save: Callable[[Any], None] = names["_save_checkpoint"]
    return save


def killed(ranks: Ranks, run: Path, seed: str) -> dict[str, Any]:
    """Kill a rank in its fourth save."""
    chance, fifth = random.Random(seed), int(seed.rpartition("-")[2]) % 5
    rank, share, alone = chance.randrange(2), (fifth + chance.random()) / 5, chance.random() < 0.5
    pipe = Pipe()
    pid = forked(ranks.save, rank, run, pipe)
    other = forked(ranks.save, 1 - rank, run)
    pipe.close_ends_of_rank()
    tracer = Tracer(pid, pipe.said, run)
    try:
        pipe.wait_for_rank()
        tracer.seize()
        pipe.go_on()
        tracer.follow(share, alone)
    finally:
        ended([other], _LATER if alone else 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        tracer.reap()
        pipe.close()
    return {
        "rank": rank,
        "alone": alone,
        "calls": tracer.counted,
        "call": tracer.count,
        "before": tracer.last,
        "signal": tracer.signal,
        "within": tracer.within,
    }


class Pipe:
    """Two pipes between a rank and its tracer."""

    def __init__(self) -> None:
        self.said, self._saying = os.pipe()
        self._waiting, self._going = os.pipe()

    def wait_for_tracer(self) -> None:
        os.write(self._saying, b"r")
        os.read(self._waiting, 1)

    def wait_for_rank(self) -> None:
        assert os.read(self.said, 1) == b"r", "a rank ended before its third save"

    def go_on(self) -> None:
        os.write(self._going, b"g")

    def say(self, word: bytes) -> None:
        os.write(self._saying, word)

    def close_ends_of_rank(self) -> None:
        os.close(self._saying)
        os.close(self._waiting)

    def close(self) -> None:
        os.close(self.said)
        os.close(self._going)


if __name__ == "__main__":
    result = main(*sys.argv[1:])
    for name in sys.argv[5:]:
        shutil.rmtree(run_of(sys.argv[4], name).parent, ignore_errors=True)
    print("\n" + json.dumps(result))
