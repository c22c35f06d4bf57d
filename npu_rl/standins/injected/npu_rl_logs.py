"""Fetches the logs of a job's workers from every node of a cluster: `python -m npu_rl_logs ADDRESS JOB FOLDER`.

Run after a job of another driver, however it ended; plain `ray` has no service for logs. Each node's come into
FOLDER/HOST/, at most _LOG bytes of one log and _NODE of a node. Says how many nodes did not answer.
"""

from __future__ import annotations

import re
import sys
import zlib
from pathlib import Path

import npu_rl_node
import npu_rl_nodes

_LOG, _NODE = 8 << 20, 64 << 20
_LIMIT = 30.0  # seconds the nodes have


def main() -> None:
    address, job, folder = sys.argv[1:]
    try:
        npu_rl_nodes.demand_head(address)
    except npu_rl_nodes.Refused as refused:
        sys.exit(f"{refused.told['what']}: {refused.told['why']}")
    import ray

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    hosts = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
    answers = npu_rl_nodes.ask(list(hosts), npu_rl_node.logs, (job, _LOG, _NODE), _LIMIT)
    silent = [hosts[node] for node, answer in answers.items() if not isinstance(answer, dict)]
    for node, answer in answers.items():
        if isinstance(answer, dict):
            _write(Path(folder, _plain(hosts[node])), answer)
    if silent:
        sys.exit(f"no logs from {', '.join(silent)}")


def _write(folder: Path, logs: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, packed in logs.items():
        (folder / _plain(name)).write_bytes(zlib.decompress(packed))


def _plain(name: str) -> str:
    """A name that another machine chose, as one of a file here."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".") or "_"


if __name__ == "__main__":
    main()
