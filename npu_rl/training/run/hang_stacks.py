"""Collection of a hanging run's stacks by a process in the training interpreter, while the run is followed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace

from npu_rl.common.bounded import read_json
from npu_rl.common.errors import HostError, NpuRlError
from npu_rl.common.masking import masked_data
from npu_rl.common.process import RUN_VARIABLE, Child, start
from npu_rl.training.monitor.hang_alarm import StackReport, report_of
from npu_rl.training.record.attempt import Attempt, write_json, write_private
from npu_rl.training.run.tiny_model import MAKER_ENVIRONMENT

_SECONDS = 50.0  # for all nodes to answer, and for a Ray that is busy to be joined


class StackCollector:
    """One collection: started, then polled until it has ended."""

    def __init__(self, attempt: Attempt, python: str, environment: Mapping[str, str]) -> None:
        """Start the collection. It writes to the attempt's stacks/N.json.

        Args:
            python: The training interpreter.
            environment: The run's; its mark is left out, since the collector is none of what is looked at.
        """
        number = 1 + sum(1 for path in attempt.stacks.glob("*.log"))
        self._data, self._log = attempt.stacks / f"{number}.json", attempt.stacks / f"{number}.log"
        self.file = attempt.stacks / f"{number}.txt"
        self._until = time.monotonic() + _SECONDS
        self._child: Child | None = None
        self._error = ""
        self._secrets = attempt.secrets
        address = json.loads(environment.get("NPU_RL_RAY", "{}")).get("address", "local")
        own = {name: value for name, value in environment.items() if name != RUN_VARIABLE}
        try:
            attempt.stacks.mkdir(mode=0o700, exist_ok=True)
            self._child = start(
                [python, "-m", "npu_rl_stacks", str(address), environment[RUN_VARIABLE], str(self._data)],
                env={**own, **MAKER_ENVIRONMENT, "NPU_RL_STANDINS": ""},
                cwd=attempt.folder,
                output=self._log,
            )
        except (HostError, OSError) as error:
            self._error = str(error)

    def done(self) -> bool:
        """Return whether the collection has ended. One that takes too long is stopped."""
        if self._child is None or self._child.poll() is not None:
            return True
        if time.monotonic() < self._until:
            return False
        self._error = f"the nodes did not answer within {_SECONDS:g} seconds"
        self.end()
        return True

    def end(self) -> None:
        """Stop the collection now."""
        if self._child is not None and self._child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait(5.0)

    def report(self) -> StackReport:
        """Return the report on the stacks, and write it as text to `file`."""
        try:
            found = read_json(self._data)
        except (OSError, ValueError):
            found = None
        if not isinstance(found, dict):
            return StackReport(error=self._error or f"see {self._log}")
        found = masked_data(found, known=self._secrets)  # a process's command line may have some
        report = report_of(found)
        try:
            write_json(self._data, found)
            write_private(self.file, report.text().encode())
        except (NpuRlError, OSError) as error:  # a full disk is no reason to end the run
            return replace(report, error=str(error))
        return report
