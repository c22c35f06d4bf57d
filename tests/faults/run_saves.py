"""Save with a tree's own checkpoint manager on two gloo ranks, kill a rank at a system call of the save, and go on.

    python run_saves.py VERL STRATEGY OLD FOLDER KEEP SEED...

VERL: the folder of the package verl; Megatron-core is on the path. OLD: 1 for verl 54c9b73. KEEP: the trainer's number
of checkpoints. For each SEED a run of four saves in FOLDER/SEED, of which the last is cut off: at the system call that
the seed chooses, of the rank that it chooses; "disk" is a file that can't be written to its end. The processes are
forks of this one, which traces them (ptrace), so that torch is imported once.

Then two new ranks load the newest whole step of each run, compare every value, and save the next step over what is
there. Prints JSON: a list of {seed, rank, killed, call, calls, steps, resumed, next, error}: the step that is resumed
from, and what is wrong with that and with the next once it is saved anew.
"""

from __future__ import annotations

import ast
import ctypes
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import transformers
from npu_rl_rehearsal import cpu_cuda

from npu_rl.record.saved_steps import RoleFiles, SavedLayout, saved_steps

SAVES = 4  # the third is counted, the fourth is cut off
_WALL, _SEIZE, _INTERRUPT, _SYSCALL, _LISTEN = 0x40000000, 0x4206, 0x4207, 24, 0x4208
_FOLLOW = 0x1 | 0x2 | 0x4 | 0x8 | 0x100000  # SYSGOOD, FORK, VFORK, CLONE, EXITKILL
_LIBC = ctypes.CDLL(None, use_errno=True)


def main(verl: str, strategy: str, old: str, folder: str, keep: str, *seeds: str) -> list[dict[str, Any]]:
    imported(Path(verl), strategy)
    expert = 2 if old == "1" else 1
    kind: Any = "fsdp" if strategy == "fsdp" else "legacy" if old == "1" else "torch_dist"
    layout = SavedLayout((RoleFiles("actor", kind, sizes=(1, 1, 1, expert)),), 2, 2)
    ranks = Ranks(Path(verl), strategy, old == "1", int(keep))
    found = []
    for seed in seeds:
        run = Path(folder) / seed
        run.mkdir(parents=True)
        chance = random.Random(seed)
        one: dict[str, Any] = {"seed": seed}
        one |= killed_at(ranks, run, chance.randrange(2), None if seed == "disk" else chance.random())
        steps = saved_steps(run, layout)
        whole = [step for step, fault in steps.items() if not fault]
        one |= {"steps": steps, "resumed": max(whole, default=None)}
        found.append(one)
    able = [(Path(folder) / one["seed"], one["resumed"]) for one in found if one["resumed"]]
    pids = [forked(ranks.go_on, rank, Path(folder), able) for rank in range(2)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    for pid in pids:
        end(pid)
    for one in found:
        after = saved_steps(Path(folder) / one["seed"], layout)
        one["error"] = "" if codes == [0, 0] else f"the ranks that loaded ended with {codes}"
        if one["resumed"]:
            one["next"] = after.get(one["resumed"] + 1, "is missing")
    return found


def imported(verl: Path, strategy: str) -> None:
    """Import what the ranks need, without verl's __init__, which needs more."""
    package: Any = types.ModuleType("verl")
    package.__path__ = [str(verl)]
    sys.modules["verl"] = package
    import packaging.version

    resources: Any = types.ModuleType("pkg_resources")
    resources.packaging = packaging  # all that Megatron-core 0.8.0 takes of it
    kernel: Any = types.ModuleType("verl.utils.kernel.linear_cross_entropy")
    kernel.linear_cross_entropy = None  # it needs triton
    sys.modules |= {"pkg_resources": resources, kernel.__name__: kernel}
    if strategy == "megatron":
        cpu_cuda.install()
    importlib.import_module(f"verl.utils.checkpoint.{strategy}_checkpoint_manager")


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


def end(rank: int) -> None:
    """Kill a rank and its children, also those that are stopped in the middle of a system call."""
    try:
        os.killpg(rank, signal.SIGKILL)
    except ProcessLookupError:
        return


class Ranks:
    """What the processes of a run do."""

    def __init__(self, verl: Path, strategy: str, old: bool, keep: int) -> None:
        self.strategy, self.old, self.keep = strategy, old, keep
        self.save_step = of_trainer(verl)

    def join(self, rank: int, store: Path) -> None:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
        if self.strategy == "megatron":
            from megatron.core import mpu, tensor_parallel

            mpu.initialize_model_parallel(expert_model_parallel_size=2 if self.old else 1)
            tensor_parallel.model_parallel_cuda_manual_seed(1)

    def save(self, rank: int, run: Path, signals: int, go: int, full: bool) -> None:
        """Save four times, and say when the last two begin and end."""
        self.join(rank, run / "store")
        state = State(self, rank, run)
        for step in range(1, SAVES + 1):
            state.train(step)
            if step == SAVES - 1 and signals >= 0:
                os.write(signals, b"r")
                os.read(go, 1)
            if step == SAVES and full:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
            if step >= SAVES - 1 and signals >= 0:
                os.write(signals, b"b")
            self.one_save(state, rank, run, step)
            if step >= SAVES - 1 and signals >= 0:
                os.write(signals, b"e")

    def one_save(self, state: State, rank: int, run: Path, step: int) -> None:
        """A step's save, by the trainer's own function on rank 0; the other rank is a worker only."""

        def workers(path: str, _remote: None, number: int, max_ckpt_to_keep: int | None) -> None:
            state.manager.save_checkpoint(path, global_step=number, max_ckpt_to_keep=max_ckpt_to_keep)
            dist.barrier()

        if rank:
            workers(str(run / f"global_step_{step}" / "actor"), None, step, self.keep)
            return
        trainer = {
            "default_local_dir": str(run),
            "default_hdfs_dir": None,
            "max_actor_ckpt_to_keep": self.keep,
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
            state = State(self, rank, run)
            state.train(99)
            state.manager.load_checkpoint(str(run / f"global_step_{step}" / "actor"))
            state.compare(step)
            if (run / f"global_step_{step + 1}" / "data.pt").exists() and rank == 0:
                (run / f"global_step_{step + 1}" / "data.pt").unlink()  # as npu_rl.training.resume_point does
            dist.barrier()
            state.train(step + 1)
            self.one_save(state, rank, run, step + 1)
            dist.barrier()


class _Config(dict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        return self[name]


class State:
    """A tiny model and optimizer whose values are those of a step, and the tree's manager for them."""

    def __init__(self, ranks: Ranks, rank: int, run: Path) -> None:
        self.rank, self.ranks = rank, ranks
        config = transformers.LlamaConfig(
            vocab_size=32, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
        )
        build = self._fsdp if ranks.strategy == "fsdp" else self._megatron
        self.model, self.optimizer, self.manager = build(config, run)

    def train(self, step: int) -> None:
        """Give each value of model and optimizer one that only this step has."""
        with torch.no_grad():
            for value in self._values():
                value.fill_(float(step))

    def compare(self, step: int) -> None:
        for value in self._values():
            assert bool((value == step).all()), (step, value.flatten()[:3])

    def _values(self) -> list[torch.Tensor]:
        if self.ranks.strategy == "megatron":
            return [self.model.weight, self.optimizer.moment]
        states = [state["exp_avg"] for state in self.optimizer.state.values()]
        return [value.data for value in self.model.parameters()] + states

    def _fsdp(self, config: Any, _run: Path) -> tuple[Any, Any, Any]:
        from torch.distributed.fsdp import FullyShardedDataParallel
        from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

        module = transformers.LlamaForCausalLM(config)
        model = FullyShardedDataParallel(module, device_id=torch.device("cpu"), use_orig_params=False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)
        for value in model.parameters():
            value.grad = torch.ones_like(value)
        optimizer.step()
        optimizer.zero_grad()
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        processing = transformers.GenerationConfig()  # something with save_pretrained
        manager = FSDPCheckpointManager(model, optimizer, schedule, processing_class=processing)
        return model, optimizer, manager

    def _megatron(self, config: Any, run: Path) -> tuple[Any, Any, Any]:
        manager: Any = importlib.import_module("verl.utils.checkpoint.megatron_checkpoint_manager")
        manager.get_weight_saver = lambda _arch: None  # for the content hf_model alone
        model, optimizer = _Model(), _Optimizer()
        given: dict[str, Any] = {
            "config": SimpleNamespace(model=SimpleNamespace(path=str(run))),
            "model_config": None,
            "role": "actor",
            "model": [model],
            "arch": "DeepseekV3ForCausalLM",
            "hf_config": config,
            "param_dtype": torch.float32,
            "share_embeddings_and_output_weights": False,
            "optimizer": optimizer,
            "use_distributed_optimizer": True,
        }
        if self.ranks.old:
            given |= {"tokenizer": transformers.GenerationConfig()}
        else:
            from megatron.core.transformer import TransformerConfig
            from omegaconf import OmegaConf

            with_newer_torch()
            contents = {"async_save": False}
            given |= {
                "checkpoint_config": OmegaConf.create(contents),
                "transformer_config": TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=2),
                "processing_class": transformers.GenerationConfig(),
                "optimizer_scheduler": None,
            }
        return model, optimizer, manager.MegatronCheckpointManager(**given)


class _Model(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """Weights of one rank."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(512))

    def sharded_state_dict(self) -> dict[str, Any]:
        return {"weight": _sharded("weight", self.weight.data)}

    def load_state_dict(self, state: Any, *_: Any, **__: Any) -> None:
        with torch.no_grad():
            self.weight.copy_(state["weight"])


class _Optimizer:
    """An optimizer with one moment, as the managers know Megatron-core's distributed one."""

    def __init__(self) -> None:
        self.moment = torch.zeros(512)
        self.optimizer = SimpleNamespace(param_groups=[{"step": 1}])

    def init_state_fn(self, _optimizer: Any) -> None:
        pass

    def sharded_state_dict(self, _model: Any) -> dict[str, Any]:
        return {"moment": _sharded("optimizer.moment", self.moment)}

    def load_state_dict(self, state: Any) -> None:
        self.moment.copy_(state["moment"])

    def save_parameter_state(self, path: str) -> None:
        every: list[Any] = [None, None]
        dist.all_gather_object(every, self.moment)
        if dist.get_rank() == 0:  # DistributedOptimizer.save_parameter_state: the first data-parallel rank
            torch.save(every, path)

    def load_parameter_state(self, path: str) -> None:
        every: list[Any] = [torch.load(path) if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(every, 0)
        self.moment.copy_(every[0][dist.get_rank()])


def _sharded(key: str, value: torch.Tensor) -> Any:
    from megatron.core.dist_checkpointing import ShardedTensor

    return ShardedTensor.from_rank_offsets(key, value, (0, dist.get_rank(), 2))


def with_newer_torch() -> None:
    """Megatron-core 0.12.1 calls a function of torch's that has one argument more since torch 2.7."""
    import functools

    writer: Any = importlib.import_module("megatron.core.dist_checkpointing.strategies.filesystem_async")
    formats: Any = importlib.import_module("torch.distributed.checkpoint.filesystem")
    if hasattr(formats, "SerializationFormat") and not isinstance(writer._write_item, functools.partial):
        usual = formats.SerializationFormat.TORCH_SAVE
        writer._write_item = functools.partial(writer._write_item, serialization_format=usual)


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


def killed_at(ranks: Ranks, run: Path, rank: int, share: float | None) -> dict[str, Any]:
    """Run four saves; at this share of the system calls of the third, the rank ends in the fourth as by kill -9.

    None: the rank's fourth save meets a full disk. Both ranks are gone afterwards, as Ray ends the others.
    """
    said, signals = os.pipe()
    go, start = os.pipe()
    full = share is None
    traced = forked(ranks.save, rank, run, signals, go, full)
    other = forked(ranks.save, 1 - rank, run, -1, go, False)
    os.close(signals)
    tracer = Tracer(traced, said)
    assert os.read(said, 1) == b"r", "a rank ended before its third save"
    tracer.seize()
    os.write(start, b"g")
    try:
        killed = tracer.follow(float("inf") if share is None else share)
    finally:
        for pid in (traced, other):
            end(pid)
        tracer.reap()
        for handle in (said, go, start):
            os.close(handle)
    (run / "store").unlink(missing_ok=True)
    return {"rank": rank, "killed": killed, "call": tracer.count // 2, "calls": tracer.total // 2}


class Tracer:
    """Counts the stops at system calls, before and after each, of a process, its threads and its children.

    It says on a pipe when a save begins and ends.
    """

    def __init__(self, pid: int, said: int) -> None:
        self.pid, self._said = pid, said
        self.pids: set[int] = set()
        self.count = self.total = 0

    def seize(self) -> None:
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            tid = int(task.name)
            if _LIBC.ptrace(_SEIZE, tid, 0, _FOLLOW) != 0:
                raise OSError(ctypes.get_errno(), "ptrace")
            _LIBC.ptrace(_INTERRUPT, tid, 0, 0)
            self.pids.add(tid)
        os.set_blocking(self._said, False)

    def follow(self, share: float) -> bool:
        """Let it run to its end, or kill it in the second counted save; whether it was killed."""
        counting, saves = False, 0
        while True:
            try:
                tid, status = os.waitpid(-1, _WALL | 0x20000000)  # __WNOTHREAD: of this thread's own
            except ChildProcessError:
                return False
            if os.WIFEXITED(status) or os.WIFSIGNALED(status):
                self.pids.discard(tid)
                if tid == self.pid:
                    return False
                continue
            self.pids.add(tid)
            number, event = os.WSTOPSIG(status), status >> 16
            for word in self._words():
                counting = word == ord("b")
                saves += counting
                if word == ord("b"):
                    self.count = 0
                elif word == ord("e") and saves == 1:
                    self.total = self.count
            if number == signal.SIGTRAP | 0x80:
                self.count += counting
                if counting and saves == 2 and self.count > share * self.total:
                    return True
            passed = 0 if event or number == signal.SIGTRAP | 0x80 else number
            if event == 128 and number in (signal.SIGSTOP, signal.SIGTSTP):  # PTRACE_EVENT_STOP of a group
                _LIBC.ptrace(_LISTEN, tid, 0, 0)
            else:
                _LIBC.ptrace(_SYSCALL, tid, 0, passed)

    def reap(self) -> None:
        while True:
            try:
                os.waitpid(-1, _WALL)
            except ChildProcessError:
                return

    def _words(self) -> bytes:
        try:
            return os.read(self._said, 64)
        except BlockingIOError:
            return b""


if __name__ == "__main__":
    result = main(*sys.argv[1:])
    shutil.rmtree(sys.argv[4], ignore_errors=True)
    print("\n" + json.dumps(result))
