from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from npu_rl.common.python_roots import INJECTED, REHEARSAL, TENSORS, VLLM
from npu_rl.training.host import vllm_environment
from tests.support import byte_code

IMPORTS = (
    "transformers", "psutil", "cloudpickle", "PIL", "aiohttp",
    "blake3", "cachetools", "compressed_tensors", "cpuinfo", "fastapi", "gguf", "msgspec", "openai",
    "prometheus_client", "zmq",
)  # fmt: skip
"""What vLLM 0.9.1 imports to run as here, beside torch; found by hiding packages one after another."""

Scenario = dict[str, Any]


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other cost the tiny models here most of their time."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def standins() -> ModuleType:
    """The package, in this process: its operators and functions; vLLM isn't needed for them."""
    pytest.importorskip("torch")
    sys.path[:0] = [str(INJECTED), str(REHEARSAL), str(VLLM)]
    try:
        import npu_rl_standins_vllm
        import npu_rl_standins_vllm.cached_attention
        import npu_rl_standins_vllm.communicator
        import npu_rl_standins_vllm.experts
        import npu_rl_standins_vllm.ops
        import npu_rl_standins_vllm.paged
    finally:
        del sys.path[:2]
    npu_rl_standins_vllm.ops.install(npu_rl_standins_vllm.cached_attention.OPS)
    return npu_rl_standins_vllm


@pytest.fixture(scope="session")
def vllm_tree(code_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `vllm` as it is at v0.9.1 (PyPI's sdist), and the dist-info a workspace has of it."""
    for name in IMPORTS:
        if find_spec(name) is None:
            pytest.skip(f"vLLM imports {name}, which is not installed: the extra `rehearsal-vllm` has it")
    folder = tmp_path_factory.mktemp("vllm-tree")
    (folder / "vllm").symlink_to(code_tree / "vllm")
    write_dist_info(folder, "0.9.1+empty")
    return folder


def write_dist_info(folder: Path, version: str) -> None:
    info = folder / f"vllm-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    # vllm-ascend's entry points, which would take the platform if they were loaded.
    (info / "entry_points.txt").write_text("[vllm.platform_plugins]\nascend = vllm_ascend:register\n")


def environment(tree: Path, **extra: str) -> dict[str, str]:
    """Of a training process on a CPU, as a rehearsal makes it."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "NPU_RL_"))},
        "PYTHONPATH": os.pathsep.join(map(str, [INJECTED, REHEARSAL, TENSORS, VLLM, tree])),
        **byte_code(),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_VISIBLE_DEVICES": "",
        "MASTER_ADDR": "127.0.0.1",
        **vllm_environment.ENVIRONMENT,
        **extra,
    }


def free_ports(number: int) -> list[int]:
    """Ports of this machine that were free a moment ago, in a row: vLLM counts on from the first."""
    while True:
        first = random.SystemRandom().randint(20000, 55000)
        try:
            for port in range(first, first + number):
                with socket.socket() as listening:
                    listening.bind(("127.0.0.1", port))
        except OSError:
            continue
        return list(range(first, first + number))


@pytest.fixture(scope="session")
def run_engine(
    vllm_tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., list[dict[str, Any]]]:
    """Run scenarios, one list for each rank; the answers of each rank."""

    def run(*per_rank: list[Scenario], usage: Path | None = None, **extra: str) -> list[dict[str, Any]]:
        folder = tmp_path_factory.mktemp("engine")
        ports = free_ports(8)
        processes = []
        for rank, scenarios in enumerate(per_rank):
            said, answers = folder / f"scenarios-{rank}.json", folder / f"answers-{rank}.json"
            said.write_text(json.dumps(scenarios))
            env = environment(
                vllm_tree,
                RANK=str(rank),
                LOCAL_RANK="0",
                WORLD_SIZE=str(len(per_rank)),
                MASTER_PORT=str(ports[0]),
                **({"NPU_RL_USAGE": str(usage)} if usage else {}),
                **extra,
            )
            if len(per_rank) > 1:
                env |= {"VLLM_DP_SIZE": str(len(per_rank)), "VLLM_DP_RANK": str(rank)}
                env |= {"VLLM_DP_MASTER_IP": "127.0.0.1", "VLLM_DP_MASTER_PORT": str(ports[1])}
            with (folder / f"log-{rank}.txt").open("wb") as log:
                command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("engine.py"))]
                processes.append(
                    subprocess.Popen(
                        [*command, str(said), str(answers)], stdout=log, stderr=log, env=env, cwd=folder
                    )
                )
        try:
            codes = [process.wait(timeout=600) for process in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
        logs = "\n".join((folder / f"log-{rank}.txt").read_text()[-5000:] for rank in range(len(per_rank)))
        assert codes == [0] * len(per_rank), logs
        return [json.loads((folder / f"answers-{rank}.json").read_text()) for rank in range(len(per_rank))]

    return run
