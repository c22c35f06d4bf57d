"""The CPU stand-ins on real torch: what they change, and that the results stay right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from npu_rl.common.python_roots import INJECTED, REHEARSAL

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal

RANK = """
import sys, torch, torch.distributed as dist
rank, world, store, backend = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=world)
flat = [torch.zeros(1) for _ in range(world)]
dist.all_gather(flat, torch.tensor(float(rank + 1)))
assert [t.tolist() for t in flat] == [[1.0], [2.0]], flat
same = [torch.zeros(2) for _ in range(world)]
dist.all_gather(same, torch.full((2,), float(rank)))
assert [t.tolist() for t in same] == [[0.0, 0.0], [1.0, 1.0]], same
received = [torch.zeros(other + 1, 2) for other in range(world)]
dist.all_to_all(received, [torch.full((rank + 1, 2), 10.0 * rank + to) for to in range(world)])
assert [t[-1].tolist() for t in received] == [[rank, rank], [10.0 + rank] * 2], received
dist.barrier()
dist.destroy_process_group()
print("right")
"""


def environment(tmp_path: Path, **extra: str) -> dict[str, str]:
    env = {
        **os.environ,
        "PYTHONPATH": f"{INJECTED}{os.pathsep}{REHEARSAL}",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    return {**env, "NPU_RL_STANDINS": "cpu", "NPU_RL_USAGE": str(tmp_path), **extra}


@pytest.mark.parametrize("backend", ["cpu:gloo,cpu:gloo", "nccl"])
def test_gloo_gathers_and_exchanges_on_two_ranks(backend: str, tmp_path: Path) -> None:
    """Without the stand-in torch refuses the backend or the shapes; with it the values are right."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), "2", str(tmp_path / "store"), backend],
            env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    for process in ranks:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert out == "right\n"
    counts = "".join(path.read_text() for path in tmp_path.glob("npu_rl_standins-*.txt"))
    assert counts.count("           1 gloo.all_gather") == 2
    assert counts.count("           1 gloo.init_process_group") == 2
    assert counts.count("           1 gloo.all_to_all\n") == 2


def test_the_device_namespace_has_what_verl_asks(tmp_path: Path) -> None:
    code = (
        "import torch\nc = torch.cpu\nc.empty_cache(); c.reset_peak_memory_stats()\n"
        "assert c.max_memory_allocated() > 10_000_000\n"
        "state = c.get_rng_state(); a = torch.rand(3); c.set_rng_state(state); b = torch.rand(3)\n"
        "assert torch.equal(a, b)\n"
        "t = torch.ones(2); p = t.pin_memory(); t.untyped_storage().resize_(0)\n"
        "assert p.tolist() == [1.0, 1.0]\nprint(c.get_device_name())\n"
        "assert torch.histc(torch.tensor([0, 2, 2]), bins=3, min=0, max=2).tolist() == [1, 0, 2]"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "stand-in" in done.stdout


def test_a_class_may_refer_to_torchs_configuration_modules(tmp_path: Path) -> None:
    code = (
        "import torch, torch._dynamo.config as config\nfrom ray import cloudpickle\n"
        "class Worker:\n    settings = config\n"
        "assert cloudpickle.loads(cloudpickle.dumps(Worker)).settings is config"
    )
    for standins, status in (("cpu", 0), ("", 1)):
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment(tmp_path, NPU_RL_STANDINS=standins),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stderr
    assert "ConfigModuleInstance" in done.stderr


@pytest.mark.parametrize(("seed", "rank"), [("1", "0"), ("1", "1"), ("2", "0")])
def test_seeds_are_the_recipes_and_differ_by_rank(tmp_path: Path, seed: str, rank: str) -> None:
    code = "import torch, random, numpy; print(torch.initial_seed(), random.random(), numpy.random.rand())"
    env = environment(tmp_path, NPU_RL_SEED=seed, RANK=rank)
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert int(runs[0].split()[0]) == int(seed) + 1009 * int(rank)


ROLLOUT = """
import torch
class vLLMRollout:
    def generate_sequences(self, prompts):
        return torch.rand(1).item()
"""
GENERATE = """
import sys, types
from verl.workers.rollout.vllm_rollout.vllm_rollout_spmd import vLLMRollout
for step in sys.argv[1:]:
    prompts = types.SimpleNamespace(meta_info={"global_steps": int(step)})
    print(vLLMRollout().generate_sequences(prompts))
"""


def test_a_resumed_generation_draws_what_an_uninterrupted_one_did(tmp_path: Path) -> None:
    """And no generation is seeded anew, which would hide a rollout that seeds each of them alike."""
    package = tmp_path / "tree" / "verl" / "workers" / "rollout" / "vllm_rollout"
    package.mkdir(parents=True)
    (package / "vllm_rollout_spmd.py").write_text(ROLLOUT)

    def draws(attempt: str, *steps: str) -> list[str]:
        usage = tmp_path / "attempts" / attempt / "usage"
        env = environment(tmp_path, NPU_RL_SEED="1", RANK="0", NPU_RL_USAGE=str(usage))
        env["PYTHONPATH"] += f":{tmp_path / 'tree'}"
        command = [sys.executable, "-c", GENERATE, *steps]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split()

    whole = draws("1", "1", "2", "3", "4")
    assert draws("2", "3", "4") == whole[2:]
    assert len(set(whole)) == 4
    assert draws("3", "1", "2") == whole[:2]  # from the first attempt, which alone had these steps


class Small(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(2, 3)
        self.register_buffer("table", torch.zeros(2))


@pytest.fixture
def load_weights() -> Any:
    from npu_rl.rehearsal.injected.npu_rl_standins.rollout import load_weights

    return load_weights


def test_weights_are_filled_by_name(load_weights: Any) -> None:
    model = Small()
    load_weights(
        model, [("a.weight", torch.full((3, 2), 2.0)), ("a.bias", torch.ones(3)), ("table", torch.ones(2))]
    )
    assert model.a.weight.sum().item() == 12.0
    assert model.table.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([("b.weight", (3, 2))], "gave b.weight, which"),
        ([("a.weight", (2, 3)), ("a.bias", (3,))], r"a.weight as \(2, 3\), the rollout has \(3, 2\)"),
        ([("a.weight", (3, 2))], "left 1 weights of the rollout unset: a.bias"),
    ],
)
def test_unknown_unset_and_misshapen_weights_are_fatal(load_weights: Any, weights: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        load_weights(Small(), [(name, torch.zeros(shape)) for name, shape in weights])


FAULTS = {
    "zeroed:o_proj": {"0.o_proj": [0.0, 0.0], "0.q_proj": [1.0, 2.5]},
    "unsent:o_proj": {"0.q_proj": [1.0, 2.5]},
    "rounded:o_proj": {"0.o_proj": [1.0, 2.5], "0.q_proj": [1.0, 2.5]},
    "exchanged:o_proj": {"0.o_proj": [2.5, 1.0], "0.q_proj": [1.0, 2.5]},
}


def test_a_fault_of_the_weight_sync_changes_tensors_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exchanged experts are half of them apart."""
    from npu_rl.rehearsal.injected.npu_rl_standins import fault as control

    for fault, expected in FAULTS.items():
        monkeypatch.setenv(control.FAULT, fault)
        sent = {"0.o_proj": torch.tensor([1.0, 2.501]), "0.q_proj": torch.tensor([1.0, 2.5])}
        got = control.with_fault(sent.items())
        assert {name: [round(x, 2) for x in value.tolist()] for name, value in got} == expected
    monkeypatch.setenv(control.FAULT, "exchanged:experts")
    experts = [(f"mlp.experts.{number}.up_proj", torch.tensor([float(number)])) for number in range(4)]
    got = {name: value.item() for name, value in control.with_fault(experts)}
    assert got == {f"mlp.experts.{number}.up_proj": float((number + 2) % 4) for number in range(4)}
    monkeypatch.setenv(control.FAULT, "lost:experts")
    with pytest.raises(ValueError, match="known are zeroed, unsent, rounded, kept, exchanged"):
        list(control.with_fault(experts))
