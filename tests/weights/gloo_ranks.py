"""Start the ranks of a process group as processes, on gloo over loopback."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support import byte_code


def processes(
    command: list[str], ranks: int, folder: Path, path: list[Path], **environment: str
) -> list[subprocess.CompletedProcess[str]]:
    """`command` once per rank, `{rank}` in it replaced. path: PYTHONPATH. They meet at a server of this process."""
    import torch.distributed as dist

    # Port 0: the system chooses; the ranks are clients all of them, so nobody can have taken it meanwhile.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    running = []
    for rank in range(ranks):
        env = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            **byte_code(),
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            **environment,
        }
        output = (folder / f"rank-{rank}.log").open("w")
        with output:
            running.append(
                subprocess.Popen(
                    [part.replace("{rank}", str(rank)) for part in command],
                    env=env,
                    cwd=folder,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )
    try:
        codes = [process.wait(timeout=300) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    logs = [(folder / f"rank-{rank}.log").read_text() for rank in range(ranks)]
    return [
        subprocess.CompletedProcess(command, code, log, "") for code, log in zip(codes, logs, strict=True)
    ]
