"""The nodes of a run: sets the run's variables on them, and compares them with the driver before training."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import npu_rl_host
import npu_rl_node
import npu_rl_odd_nodes

_TIMEOUT = 180.0  # seconds for all nodes to answer; a worker's first start may load a lot over a network
_CONNECT_TIMEOUT = 10.0  # seconds for a head to accept a connection
_SETTINGS = b"\x04"  # type of the frame that begins each side of HTTP/2 (RFC 9113, 3.4), which gRPC is
_HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + _SETTINGS + b"\0\0\0\0\0"
_DRIVER_ONLY = frozenset({"NPU_RL_RAY", "NPU_RL_NODES", "NPU_RL_PARENT"})  # only the driver reads these
_FILES_SHOWN = 5  # differing files of a node that an error names


class Refused(Exception):
    """The nodes don't match the run's record. `details` has what, where, why and hint."""

    def __init__(self, **details: str) -> None:
        super().__init__(details["what"])
        self.details = details


def run_variables(run: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for every process of the run: those set by npu-rl, and the driver's NPU_RL_*."""
    ours = {name for name in environ if name.startswith("NPU_RL_")} - _DRIVER_ONLY
    return {name: environ[name] for name in sorted({*run["variables"], *ours}) if name in environ}


def runtime_env(run: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, Any]:
    """Return `values` as a Ray runtime_env. A setup hook sets secrets, since Ray logs env_vars."""
    secrets = {name: values[name] for name in run["by_hook"] if name in values}
    others = {name: value for name, value in values.items() if name not in secrets}
    names = {"NPU_RL_VARIABLES": ",".join(values)}
    hook = {"worker_process_setup_hook": _setup_hook(secrets)} if secrets else {}
    return {"env_vars": {**_env_vars(run, others), **names}, **hook}


def _setup_hook(secrets: Mapping[str, str]) -> Callable[[], None]:
    def set_secrets() -> None:
        os.environ.update(secrets)

    return set_secrets


def _env_vars(run: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, str]:
    """Return env_vars that put the run's folders before a node's own PYTHONPATH.

    Ray expands $NAME and ${NAME} in each value on the node and has no way to write a dollar sign
    (ray/_private/utils.py, update_envs, at 2.42.1). So a value with one is sent as JSON, and sitecustomize unpacks it.
    """
    dollars = {name: value for name, value in values.items() if "$" in value}
    quoted = json.dumps(dollars).replace("$", "\\u0024")
    return {
        **{name: value for name, value in values.items() if name not in dollars},
        **({"NPU_RL_QUOTED": quoted} if dollars else {}),
        "PYTHONPATH": os.pathsep.join([*run["paths"], "${PYTHONPATH}"]),
    }


def require_sendable(values: Mapping[str, str]) -> None:
    """Raise Refused for a variable that a running Ray's workers would receive too late, after their start."""
    early = [name for name, value in values.items() if "$" in value and name.startswith("LD_")]
    if early:
        raise Refused(
            what=f"{early[0]} can't be given to Ray's workers",
            where=early[0],
            why="Its value has a dollar sign, which Ray would expand, and the loader reads it before Python starts.",
            hint="Write the value without `$`.",
        )


def require_head(address: str) -> None:
    """Raise Refused unless a gRPC server answers at HOST:PORT. Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT) as connection:
            connection.sendall(_HTTP2_HELLO)
            connection.settimeout(_CONNECT_TIMEOUT)
            if os.environ.get("RAY_USE_TLS") != "1" and connection.recv(9)[3:4] != _SETTINGS:
                raise OSError("Something else than Ray answers there.")
    except OSError as error:
        raise Refused(
            what=f"No Ray head answers at {address}",
            where="cluster.address",
            why=str(error),
            hint="Start Ray there, as head.sh of `--dry-run` does, or correct the address.",
        ) from error


def compare(run: Mapping[str, Any], values: Mapping[str, str], limit: float = _TIMEOUT) -> None:
    """Compare every node that can run workers with the driver, and write nodes.json to the record.

    Raises Refused for a difference, after nodes.json is written.
    """
    import ray

    began = time.time()
    nodes = [
        node for node in ray.nodes() if node["Alive"] and {"CPU", "GPU", "NPU"} & node["Resources"].keys()
    ]
    answers = run_on_nodes(
        [node["NodeID"] for node in nodes], npu_rl_node.describe_node, (dict(run), dict(values)), limit
    )
    here = npu_rl_node.describe_node(run, values)
    listed = [_node_entry(node, answers[node["NodeID"]], here) for node in nodes]
    others = {entry["node"]: entry for entry in listed if entry.get("tree", here["tree"]) != here["tree"]}
    if others:
        _add_differing_files(others, run["code"], limit)
    for line in _compare_hosts(nodes, listed, here, (began, time.time())):
        print(f"npu-rl: note: {line}", flush=True)
    bad = [node for node in listed if node["problems"]]
    _write(run, {"job": ray.get_runtime_context().get_job_id(), "nodes": listed})
    if bad:
        raise _refusal(bad, len(nodes), limit)


def _compare_hosts(
    nodes: list[dict[str, Any]],
    listed: list[dict[str, Any]],
    here: Mapping[str, Any],
    asked: tuple[float, float],
) -> list[str]:
    """Record how the host of each node with devices differs from the majority. Returns harmless differences.

    A head without devices has no CANN, and needs none.
    """
    with_devices = {node["NodeID"] for node in nodes if {"NPU", "GPU"} & node["Resources"].keys()}
    answered = [entry for entry in listed if "stack" in entry]
    stacks = {entry["node"]: entry["stack"] for entry in answered if entry["node"] in with_devices}
    notes = []
    for entry in answered:
        odd = npu_rl_odd_nodes.odd_facts(entry["node"], stacks, here["stack"])
        entry["problems"] += [("host", text) for stops, text in odd if stops]
        notes += [f"{entry['host']}: {text}" for stops, text in odd if not stops]
        skew = npu_rl_odd_nodes.clock_skew(entry["clock"], *asked)
        notes += [f"{entry['host']}: {skew}"] if skew else []
    return notes


def record_refusal(run: Mapping[str, Any], refused: Refused) -> None:
    """Record in nodes.json why the trainer was not started."""
    path = Path(run["record"], "nodes.json")  # of this attempt, in its folder of mode 700
    known = json.loads(path.read_bytes()) if path.exists() else {}
    _write(run, {**known, "refused": refused.details})


def run_on_nodes(
    nodes: list[str],
    function: Any,
    arguments: tuple[Any, ...],
    limit: float,
    modules: tuple[ModuleType, ...] = (),
) -> dict[str, Any]:
    """Return a function's results by node id: the error text if it failed, None if it timed out.

    Args:
        modules: What the function needs of this folder beside npu_rl_node; it is sent along.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    for module in (npu_rl_node, npu_rl_host, *modules):
        ray.cloudpickle.register_pickle_by_value(module)
    task = ray.remote(num_cpus=0, max_retries=0)(function)
    node_of_task = {
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
            *arguments
        ): node
        for node in nodes
    }
    ready, late = ray.wait(list(node_of_task), num_returns=len(node_of_task), timeout=limit)
    answers: dict[str, Any] = {node_of_task[one]: None for one in late}
    for one in late:
        ray.cancel(one, force=True)
    for one in ready:
        try:
            answers[node_of_task[one]] = ray.get(one)
        except (ray.exceptions.RayError, OSError) as error:
            answers[node_of_task[one]] = f"{type(error).__name__}: {error}"
    return answers


def _node_entry(node: Mapping[str, Any], answer: Any, here: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node's entry for the record. Its `problems` are pairs of a kind in _HINTS and a text."""
    place = {"host": node["NodeManagerHostname"], "ip": node["NodeManagerAddress"], "node": node["NodeID"]}
    if not isinstance(answer, dict):
        return {**place, "problems": [("worker", answer or "")]}
    problems = _problems(answer, here)
    return {**place, **answer, "problems": problems}


def _problems(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[tuple[str, str]]:
    if there["missing"]:  # all other problems follow from it
        return [("folder", f"not on its PYTHONPATH, or no folder there: {path}") for path in there["missing"]]
    found = []
    if not there["writes"]:
        found.append(("record", "the folder of the run's record is not there, or can't be written"))
    if (there["python"], there["prefix"]) != (here["python"], here["prefix"]):
        interpreter = f"Python {there['python']} at {there['prefix']}"
        found.append(
            ("python", f"its workers run {interpreter}, the driver {here['python']} at {here['prefix']}")
        )
    for name, version in here["packages"].items():
        if there["packages"].get(name) != version:
            found.append(("python", f"{name} is {there['packages'].get(name)}, at the driver {version}"))
    if there["tree"] != here["tree"]:
        found.append(("tree", f"the code is tree {there['tree']}, at the driver {here['tree']}"))
    if there["differ"]:
        found.append(("variables", f"not as this run sets them: {', '.join(there['differ'])}"))
    if there["strays"]:
        found.append(("variables", f"set there and not by this run: {', '.join(there['strays'])}"))
    return found


def _add_differing_files(bad: Mapping[str, dict[str, Any]], code: str, limit: float) -> None:
    """Add the differing files to the problems of nodes whose tree differs."""
    ours = npu_rl_node.file_ids(code) or {}
    for node, theirs in run_on_nodes(list(bad), npu_rl_node.file_ids, (code,), limit).items():
        if not isinstance(theirs, dict):
            continue
        differing = sorted(path for path in {*ours, *theirs} if ours.get(path) != theirs.get(path))
        shown = [path if path.isprintable() else ascii(path) for path in differing[:_FILES_SHOWN]]
        more = f" and {len(differing) - _FILES_SHOWN} more" if len(differing) > _FILES_SHOWN else ""
        bad[node]["problems"].append(("tree", f"differing: {', '.join(shown)}{more}"))


_HINTS = {
    "worker": "Look at Ray's logs there (raylet.out, runtime_env_agent.log), and end what else keeps it busy.",
    "folder": "npu-rl and the workspace have to be at the same path on every node: on a shared file system, or copied.",
    "record": "Put the runs on a file system that every node has: NPU_RL_RUNS=DIR.",
    "python": "Start Ray there with the recipe's interpreter, as head.sh and worker.sh of `--dry-run` do.",
    "tree": "Run `npu-rl verify --deep` on that node, and set the same lock up there.",
    "variables": "Restart Ray there from a shell that sets none of them.",
    "host": "Install there what the others have, or take the node out; `npu-rl doctor` there shows all of it.",
}


def _refusal(bad: list[dict[str, Any]], count: int, limit: float) -> Refused:
    lines = []
    for node in bad:
        for kind, text in node["problems"]:
            fault = (
                f"no worker could be started: {text.splitlines()[0][:300]}"
                if kind == "worker" and text
                else text
            )
            lines.append(f"{node['host']}: {fault or f'no worker answered within {limit:g} seconds'}")
    kinds = {kind for node in bad for kind, _ in node["problems"]}
    return Refused(
        what=f"{len(bad)} of {count} nodes differ from the record of this run",
        where=", ".join(f"{node['host']} ({node['ip']})" for node in bad),
        why="\n".join(lines),
        hint="\n".join(text for kind, text in _HINTS.items() if kind in kinds),
    )


def _write(run: Mapping[str, Any], value: Any) -> None:
    """Write nodes.json atomically."""
    path = Path(run["record"], "nodes.json")
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(path)
