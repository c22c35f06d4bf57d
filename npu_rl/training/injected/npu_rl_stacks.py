"""Collect the stacks of a run's processes from every node: `python -m npu_rl_stacks ADDRESS RUN FILE`.

ADDRESS is the run's Ray that was there before it, or `local`: then all of it is on this host, and Ray is not asked,
which may hang itself. FILE gets {"nodes": [{"host", "ip", "processes"}, ...], "silent": [...], "lost": [...]}.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import npu_rl_lost_nodes
import npu_rl_nodes
import npu_rl_stack_dump
import npu_rl_stack_signal

_LIMIT = 25.0  # seconds for all nodes to answer


def main() -> None:
    """Collect and write the stacks. Exits with a message if the cluster does not answer."""
    address, run, file = sys.argv[1:]
    if address == "local":
        here = os.uname().nodename
        found: dict[str, Any] = {
            "nodes": [{"host": here, "ip": "", "processes": npu_rl_stack_dump.dump_run(run)}],
            "silent": [],
            "lost": [],
        }
    else:
        found = _from_cluster(address, run, Path(file).parents[1] / "nodes.json")
    part = Path(f"{file}.part")
    part.write_text(json.dumps(found), encoding="utf-8")
    part.replace(file)


def _from_cluster(address: str, run: str, report: Path) -> dict[str, Any]:
    try:
        npu_rl_nodes.require_head(address)
    except npu_rl_nodes.Refused as refused:
        sys.exit(f"{refused.details['what']}: {refused.details['why']}")
    import ray

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    nodes = {node["NodeID"]: node for node in ray.nodes()}
    alive = [node for node, facts in nodes.items() if facts["Alive"]]
    answers = npu_rl_nodes.run_on_nodes(
        alive, npu_rl_stack_dump.dump_run, (run,), _LIMIT, (npu_rl_stack_dump, npu_rl_stack_signal)
    )
    places = {
        node: {"host": facts["NodeManagerHostname"], "ip": facts["NodeManagerAddress"]}
        for node, facts in nodes.items()
    }
    return {
        "nodes": [
            {**places[node], "processes": rows} for node, rows in answers.items() if isinstance(rows, list)
        ],
        "silent": [places[node] for node, rows in answers.items() if not isinstance(rows, list)],
        "lost": npu_rl_lost_nodes.lost_nodes(ray.nodes(), report),
    }


if __name__ == "__main__":
    main()
