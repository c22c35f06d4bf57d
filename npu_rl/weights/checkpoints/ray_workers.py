"""Workers that run `npu_rl_tensors` tasks on the hosts of a Ray cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from npu_rl.common.errors import HostError, NpuRlError, UsageError
from npu_rl.common.process import WorkerProcess
from npu_rl.weights import tensors
from npu_rl.weights.checkpoints.worker_pool import Task, Workers, raise_answer

_CANCEL_TIMEOUT = 40.0  # seconds for Ray to end the tasks after Ctrl-C; a head that is lost may never answer


def require_address(value: str) -> None:
    """Raise UsageError unless the value is `auto` or HOST:PORT."""
    from npu_rl.common.yaml_documents.text_checks import split_address

    try:
        if value != "auto":
            split_address(value)
    except ValueError as error:
        raise UsageError(f"Invalid --ray {value}", why=f"It {error}, or `auto`.") from error


@dataclass(frozen=True)
class RayWorkers(Workers):
    """Workers that Ray starts, at most `count` on each host.

    Attributes:
        address: HOST:PORT of the head, or `auto` for the cluster that this host belongs to.
        hosts: The cluster's hosts, set by `run`: `node`, `host`, `ip`, `cpus`, `workers`, and `tasks`, the number done.
    """

    address: str = "auto"
    hosts: list[dict[str, Any]] = field(default_factory=list, compare=False)

    def run(
        self,
        tasks: Sequence[Task],
        on_result: Callable[[Any], None],
        on_progress: Callable[[int], None],
    ) -> None:
        """Run all tasks; the first failure ends the others. Progress is reported when a task has ended.

        Raises:
            WeightsError: If the files are at fault.
            HostError: If a host, its interpreter or the cluster is.
        """
        if not tasks:
            return
        requested = [{"task": task.name, "arguments": task.arguments} for task in tasks]
        process = WorkerProcess(
            [self.python, "-B", "-m", f"{tensors.PACKAGE}.ray_driver"], self.environment()
        )
        try:
            process.send(json.dumps({"address": self.address, "workers": self.count, "tasks": requested}))
            left = len(tasks)
            while left:
                answer = self._receive(process)
                if answer["event"] == "hosts":
                    self.hosts[:] = [{**host, "tasks": 0} for host in answer["hosts"]]
                    continue
                if answer["event"] != "result":
                    self._fail(answer, tasks)
                self._host(answer)["tasks"] += 1
                on_progress(answer["bytes"])
                on_result(answer["value"])
                left -= 1
        finally:
            process.end(_CANCEL_TIMEOUT)
            process.close()

    def run_here(self, task: Task) -> Any:
        """Run one task on this host and return its value."""
        return Workers(self.python, 1, self.threads, self.inherit_path).run_here(task)

    def describe(self) -> dict[str, Any]:
        """Return the hosts, with the number of tasks each has completed."""
        return {"hosts": list(self.hosts)}

    def _receive(self, process: WorkerProcess) -> dict[str, Any]:
        line = process.receive()
        if line is None:
            raise HostError(
                "The process that submits tasks to Ray has ended",
                where=self.python,
                why=process.last_words(),
                hint="Run the command again: it resumes. `ray status` shows whether the cluster is well.",
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _host(self, answer: dict[str, Any]) -> dict[str, Any]:
        return next((host for host in self.hosts if host["node"] == answer.get("node")), {"tasks": 0})

    def _fail(self, answer: dict[str, Any], tasks: Sequence[Task]) -> NoReturn:
        """Raise the error of a task, naming its host, or the error of the cluster."""
        event, index = answer.pop("event"), answer.pop("index", None)
        host = self._host(answer)
        answer = {name: value for name, value in answer.items() if name not in ("node", "bytes")}
        try:
            raise_answer(event, answer, None if index is None else tasks[index])
        except NpuRlError as error:
            if "host" in host:
                error.where = f"{error.where or 'a task'}, on {host['host']} ({host['ip']})"
            raise
