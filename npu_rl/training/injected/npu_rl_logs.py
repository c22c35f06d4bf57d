"""Fetch the logs of a job's workers from every node of a cluster: `python -m npu_rl_logs ADDRESS JOB FOLDER`.

It is run after the job of another driver, however that ended; plain `ray` has no service for logs. The logs of a node
are written to FOLDER/HOST/, at most _LOG_LIMIT bytes of one log and _NODE_LIMIT of a node. Nodes that the run began
with and that are gone are named in lost-nodes.json beside FOLDER.
"""

from __future__ import annotations

import json
import re
import sys
import zlib
from pathlib import Path

import npu_rl_lost_nodes
import npu_rl_node
import npu_rl_nodes

_LOG_LIMIT, _NODE_LIMIT = 8 << 20, 64 << 20
_TIMEOUT = 30.0  # seconds for all nodes to answer


def main() -> None:
    """Fetch the logs. Exits with a message that names the nodes that didn't answer."""
    address, job, folder = sys.argv[1:]
    try:
        npu_rl_nodes.require_head(address)
    except npu_rl_nodes.Refused as refused:
        sys.exit(f"{refused.details['what']}: {refused.details['why']}")
    import ray

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    hosts = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
    answers = npu_rl_nodes.run_on_nodes(
        list(hosts), npu_rl_node.job_logs, (job, _LOG_LIMIT, _NODE_LIMIT), _TIMEOUT
    )
    # After the answers: Ray notices a node that is gone up to half a minute later, and waiting for it took as long.
    attempt = Path(folder).parent
    lost = npu_rl_lost_nodes.lost_nodes(ray.nodes(), attempt / "nodes.json")
    if lost:
        (attempt / "lost-nodes.json").write_text(json.dumps(lost, indent=2) + "\n", encoding="utf-8")
    silent = [hosts[node] for node, answer in answers.items() if not isinstance(answer, dict)]
    for node, answer in answers.items():
        if isinstance(answer, dict):
            _write(Path(folder, _safe_name(hosts[node])), answer)
    if silent:
        sys.exit(f"no logs from {', '.join(silent)}")


def _write(folder: Path, job_logs: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, packed in job_logs.items():
        (folder / _safe_name(name)).write_bytes(zlib.decompress(packed))


def _safe_name(name: str) -> str:
    """Convert a name from another machine to a safe file name."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".") or "_"


if __name__ == "__main__":
    main()
