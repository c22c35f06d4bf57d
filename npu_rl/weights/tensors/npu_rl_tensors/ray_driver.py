"""Driver of tasks on the hosts of a Ray cluster: `python -m npu_rl_tensors.ray_driver`.

In, one line of JSON: {"address": ..., "workers": N, "tasks": [{"task": NAME, "arguments": {...}}, ...]}. Out: {"event":
"hosts", "hosts": [...]}, and for each finished task {"event": "result", "index": I, "value": ..., "bytes": N, "node":
ID}, or "error" or "bug" as of a worker, after which no task is running. At the end of its input, and after an error,
all tasks are cancelled.

What runs where is Ray's: a placement group has a bundle of CPUs on each host, and the tasks go to any of them. If a
host is lost Ray runs its tasks again on another. No task depends on another, and a file gets its name when it is whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import ray_host
from .tensor_error import TensorError

_READ = ("input", "config", "a", "b")  # arguments of tasks that are folders
_RETRIES = 3  # of a task whose worker or host was lost
_POLL = 0.2  # seconds between two looks at whether the input has ended
_CONNECT_TIMEOUT = 10.0  # seconds for a head to accept a connection
_LOOK_TIMEOUT = 180.0  # seconds for all hosts to answer; a worker's first start may load torch over a network
_ROOM_TIMEOUT = 60.0  # seconds for the CPUs to become free
_CANCEL_TIMEOUT = 20.0  # seconds for cancelled tasks to end

Say = Callable[..., None]
Hosts = Sequence[Mapping[str, Any]]


class _Ended(Exception):
    """The input ended: the npu-rl command has exited."""


class _Input:
    """Standard input, whose end means that the npu-rl command has exited.

    Attributes:
        joined: Whether this process has joined the cluster and must leave it in order; `ray.init` can't be interrupted.
    """

    def __init__(self) -> None:
        self.joined = False
        self._ended = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def require(self) -> None:
        """Raise _Ended if the input has ended."""
        if self._ended.is_set():
            raise _Ended

    def _read(self) -> None:
        sys.stdin.read()
        self._ended.set()
        if not self.joined:
            os._exit(0)


def main() -> None:
    """Run the tasks of one request."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # what Ray prints is no answer

    def say(event: str, **fields: Any) -> None:
        out.write(json.dumps({"event": event, **fields}) + "\n")

    request = json.loads(sys.stdin.readline())
    caller = _Input()
    try:
        failure = _run(request, say, caller)
    except TensorError as error:
        say("error", **vars(error))
    except _Ended:
        return
    else:
        if failure is not None:
            say(**failure)


def _run(request: Mapping[str, Any], say: Say, caller: _Input) -> dict[str, Any] | None:
    """Run the tasks. Returns the first event that is not a task's result, or None if all tasks succeeded."""
    tasks = request["tasks"]
    with _joined(request["address"]):
        caller.joined = True
        caller.require()
        hosts = _usable_hosts()
        workers = [min(request["workers"], host["cpus"]) for host in hosts]
        threads = min(host["cpus"] // count for host, count in zip(hosts, workers, strict=True))
        _compare(hosts, tasks, caller)
        say("hosts", hosts=[{**host, "workers": count} for host, count in zip(hosts, workers, strict=True)])
        with _room([count * threads for count in workers], caller) as group:
            return _run_tasks(tasks, group, threads, say, caller)


@contextlib.contextmanager
def _joined(address: str) -> Iterator[None]:
    """Join the cluster as a driver. Ray copies this package to each host for the workers."""
    try:
        import ray
    except ImportError as error:
        raise TensorError(
            "The interpreter has no Ray",
            where=sys.executable,
            why=str(error),
            hint="Pass the one that Ray was started with: --python PATH",
            host=True,
        ) from None
    if address != "auto":
        _require_head(address)
    package = Path(__file__).resolve().parent
    try:
        ray.init(
            address=address,
            runtime_env={"py_modules": [str(package)], "excludes": ["__pycache__"]},
            log_to_driver=False,
            logging_level="ERROR",
        )
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise _join_error(address, str(error)) from error
    try:
        yield
    finally:
        ray.shutdown()


def _require_head(address: str) -> None:
    """Raise TensorError if nothing listens at HOST:PORT. Ray itself would retry for a minute and a half."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT).close()
    except OSError as error:
        raise TensorError(
            f"No Ray head answers at {address}",
            where="--ray",
            why=str(error),
            hint="Start Ray there, or correct the address.",
            host=True,
        ) from None


def _join_error(address: str, text: str) -> TensorError:
    if "Version mismatch" in text:
        return TensorError(
            "The cluster's Ray or Python version differs from this interpreter's",
            where=sys.executable,
            why=text.strip(),
            hint="Pass the interpreter that Ray was started with: --python PATH",
            host=True,
        )
    return TensorError(
        "The Ray cluster can't be joined",
        where=f"--ray {address}",
        why=text.strip(),
        hint="Make this host a node of the cluster: run `ray start --address=HOST:PORT` on it.",
        host=True,
    )


def _usable_hosts() -> list[dict[str, Any]]:
    """Return the nodes that offer CPUs."""
    import ray

    found = [
        {
            "node": node["NodeID"],
            "host": node["NodeManagerHostname"],
            "ip": node["NodeManagerAddress"],
            "cpus": int(node["Resources"].get("CPU", 0)),
        }
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("CPU", 0) >= 1
    ]
    if not found:
        raise TensorError(
            "No node of the Ray cluster offers a CPU", hint="`ray start --num-cpus=N`", host=True
        )
    return found


def host_name(host: Mapping[str, Any]) -> str:
    """Return a host's name for messages."""
    return f"{host['host']} ({host['ip']})"


# -- before anything is written ------------------------------------------------------------------------


def _compare(hosts: Hosts, tasks: Sequence[Mapping[str, Any]], caller: _Input) -> None:
    """Raise TensorError if a host lacks torch, has a different version, or doesn't see the same folders."""
    named = [task["arguments"] for task in tasks]
    folders = sorted({of[name] for of in named for name in _READ if of.get(name)})
    output = next((of["output"] for of in named if of.get("output")), None)
    token = os.urandom(8).hex()
    own: list[Path] = []
    try:
        if output is not None:
            own = [ray_host.probe(Path(output), token, name) for name in ("", *(h["node"] for h in hosts))]
            own[0].write_text(token)
        answers = _look_at(hosts, (folders, output, token), caller)
        here = ray_host.look(folders, None, token, "")
        problems = [
            f"{host_name(host)}: {problem}"
            for host in hosts
            for problem in _problems(answers[host["node"]], here, output, token, host["node"])
        ]
    finally:
        for path in own:
            path.unlink(missing_ok=True)
    if problems:
        raise TensorError(
            "Not every host of the Ray cluster can take tasks",
            where="--ray",
            why="\n".join(problems),
            hint="Input and output must be on a file system that all hosts share, at the same path, and Ray has "
            "to be started on all of them with one interpreter that has torch.",
            host=True,
        )


def _look_at(hosts: Hosts, arguments: tuple[Any, ...], caller: _Input) -> dict[str, Any]:
    """Return the result of `ray_host.look` by node: the error text if it failed, None if it timed out."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    looks = {}
    for host in hosts:
        there = NodeAffinitySchedulingStrategy(host["node"], soft=False)
        task = ray.remote(ray_host.look).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
        looks[task.remote(*arguments, host["node"])] = host["node"]
    answers: dict[str, Any] = dict.fromkeys(looks.values())
    left, deadline = list(looks), time.monotonic() + _LOOK_TIMEOUT
    while left and time.monotonic() < deadline:
        caller.require()
        ready, left = ray.wait(left, timeout=_POLL)
        for one in ready:
            try:
                answers[looks[one]] = ray.get(one)
            except ray.exceptions.RayError as error:
                answers[looks[one]] = _told(error)
    return answers


def _problems(
    there: Any, here: Mapping[str, Any], output: str | None, token: str, node: str
) -> Iterator[str]:
    if not isinstance(there, dict):
        yield (
            f"no worker could be started: {there}" if there else f"no worker answered in {_LOOK_TIMEOUT:g} s"
        )
        return
    if there["torch"] is None:
        yield f"its interpreter (Python {there['python']}) has no torch"
    elif _release(there["torch"]) != _release(here["torch"]):
        yield f"it has torch {there['torch']}, and this host {here['torch']}"
    for folder, found in there["folders"].items():
        if found is None:
            yield f"{folder} is not there"
        elif found != here["folders"][folder]:
            yield f"{folder} has other files there, or of other sizes"
    if output is not None and there["output"]:
        yield f"{output}: {there['output']}"
    elif output is not None and not _is_probe(ray_host.probe(Path(output), token, node), token):
        yield f"{output}: a file that it has written there is not here"


def _release(version: str | None) -> str | None:
    return None if version is None else version.partition("+")[0]  # behind it: for which device


def _is_probe(path: Path, token: str) -> bool:
    try:
        return path.read_text() == token
    except OSError:
        return False


# -- the tasks -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _room(cpus: Sequence[int], caller: _Input) -> Iterator[Any]:
    """Reserve the given number of CPUs on each of several hosts."""
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group([{"CPU": count} for count in cpus], strategy="STRICT_SPREAD")
    try:
        deadline = time.monotonic() + _ROOM_TIMEOUT
        while not group.wait(1):
            caller.require()
            if time.monotonic() > deadline:
                raise TensorError(
                    "The Ray cluster has no room",
                    where="--ray",
                    why=f"The workers need {', '.join(map(str, cpus))} CPUs, each number on another host; "
                    f"{ray.available_resources().get('CPU', 0):g} are free in all.",
                    hint="Wait until other jobs have ended, or run with fewer workers: --workers N",
                    host=True,
                )
        yield group
    finally:
        remove_placement_group(group)


def _run_tasks(
    tasks: Sequence[Mapping[str, Any]], group: Any, threads: int, say: Say, caller: _Input
) -> dict[str, Any] | None:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    remote = ray.remote(ray_host.run_task).options(
        num_cpus=threads,
        max_retries=_RETRIES,
        scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=-1),
    )
    numbers = {
        remote.remote(task["task"], task["arguments"], threads): number for number, task in enumerate(tasks)
    }
    left = list(numbers)
    try:
        while left:
            caller.require()
            ready, left = ray.wait(left, timeout=_POLL)
            for one in ready:
                answer = {**_answer(one), "index": numbers[one]}
                if answer["event"] != "result":
                    return answer
                say(**answer)
    finally:
        _cancel(left)
    return None


def _answer(task: Any) -> dict[str, Any]:
    import ray

    try:
        return dict(ray.get(task))
    except ray.exceptions.LocalRayletDiedError:
        ended = TensorError(
            "The Ray node of this host has ended",
            hint="Start Ray on it again, and run the command again: it resumes.",
            host=True,
        )
        return {"event": "error", **vars(ended)}
    except ray.exceptions.RayError as error:
        lost = TensorError(
            "A worker exited before its task was finished",
            why=f"{_told(error)}\nRay has tried it {_RETRIES + 1} times.",
            hint="A kernel ends processes for want of memory: run again with fewer workers (--workers 1).",
            host=True,
        )
        return {"event": "error", **vars(lost)}


def _cancel(tasks: Sequence[Any]) -> None:
    """Cancel tasks and wait until they have ended."""
    import ray

    for one in tasks:
        ray.cancel(one, force=True)
    if tasks:
        ray.wait(list(tasks), num_returns=len(tasks), timeout=_CANCEL_TIMEOUT)


def _told(error: Exception) -> str:
    """Return Ray's error message: the last line of a traceback, or the first lines of other text."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()] or [type(error).__name__]
    return (
        lines[-1]
        if "Traceback" in str(error) or lines[0].startswith("\x1b[36mray::")
        else "\n".join(lines[:3])
    )


if __name__ == "__main__":
    main()
