"""Checks of Python before and after a patch: whether it compiles, and, by pyflakes, names no longer defined."""

from __future__ import annotations

import base64
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from npu_rl.common.process import WorkerProcess
from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.stack.lint.lint_report import LintFinding
from npu_rl.stack.lint.python_child import SECONDS
from npu_rl.stack.lint.series_state import AppliedFile
from npu_rl.stack.lint.white_space import lines_of

_SUFFIXES = (".py", ".pyi")
# With the path of this process, whatever the environment and the current folder hold.
_START = "import sys; sys.path[:] = sys.argv[1:]; from npu_rl.stack.lint.python_child import main; main()"


class PythonChecker:
    """Checker of changed Python files, in a process that starts with the first file. Close it after use."""

    def __init__(self) -> None:
        self._process: WorkerProcess | None = None

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.close()
            self._process = None

    def findings(self, patch: str, change: AppliedFile) -> Iterator[LintFinding]:
        """Yield the faults that a patch adds to a Python file. Faults from before the patch are only notes."""
        file = change.file
        if not file.path.endswith(_SUFFIXES) or change.after is None:
            return
        answer = self._examined(PurePosixPath(file.path).name, change.before, change.after)
        if isinstance(answer, str):
            message = f"{file.path} was not checked: {answer}"
            yield LintFinding("python", Severity.NOTE, patch, file.line, message)
            return
        before, after = answer["before"] or {"names": {}}, answer["after"]
        if "error" in after:
            yield _broken(patch, change, before, after)
        elif "error" in before:
            message = f"names in {file.path} were not checked: before the patch {before['error']}"
            yield LintFinding("python", Severity.NOTE, patch, file.line, message)
        else:
            yield from _new_names(patch, change, before["names"], after["names"])

    def _examined(self, name: str, before: bytes | None, after: bytes) -> dict[str, Any] | str:
        """Return the result of `python_child.examine`, or the reason why it is missing."""
        if self._process is None:
            path = [folder for folder in sys.path if folder]
            self._process = WorkerProcess([sys.executable, "-I", "-S", "-c", _START, *path], {})
        asked = {
            "name": name,
            "before": None if before is None else base64.b64encode(before).decode(),
            "after": base64.b64encode(after).decode(),
        }
        self._process.send(json.dumps(asked))
        line = self._process.receive()
        if line is None:
            ended = self._process.last_words()
            self.close()
            if ended.startswith(f"signal {signal.SIGPROF.value}"):
                return f"it takes more than {SECONDS:g} s of CPU time"
            return f"the process that examined it ended: {' '.join(ended.split())}"
        answer: dict[str, Any] = json.loads(line)
        return answer


def _new_names(
    patch: str, change: AppliedFile, before: dict[str, list[int]], after: dict[str, list[int]]
) -> Iterator[LintFinding]:
    """Yield the names that are undefined after the patch and were not already used undefined before it."""
    file, added = change.file, _added_lines(change)
    for name in sorted(after.keys() - before.keys(), key=lambda name: after[name][0]):
        lines = after[name]
        line = next((n for n in lines if n in added), None)
        if line is not None:
            message = f"nothing in {file.path} defines or imports {name}, which line {line} uses"
            yield LintFinding("names", Severity.ERROR, patch, added[line], message)
        else:
            message = f"{file.path} still uses {name} in line {lines[0]}, and nothing defines or imports it any more"
            yield LintFinding("names", Severity.ERROR, patch, file.line, message)


def _broken(patch: str, change: AppliedFile, before: dict[str, Any], after: dict[str, Any]) -> LintFinding:
    """Return the finding for a file that does not compile: an error, unless the fault is old or the file too large."""
    file = change.file
    if "error" in before:
        message = f"{file.path} was not checked: before the patch {before['error']}"
        return LintFinding("python", Severity.NOTE, patch, file.line, message)
    severity = Severity.ERROR if after["is_fault"] else Severity.NOTE
    message = f"{file.path} does not compile after the patch: {after['error']}"
    return LintFinding("python", severity, patch, file.line, message)


def _added_lines(change: AppliedFile) -> dict[int, int]:
    """Return the lines that a patch adds, as line number in the new file -> line number in the patch."""
    added = {}
    for hunk in change.file.hunks:
        number = hunk.new_index + change.offsets.get(hunk.number, 0)
        for at, line in lines_of(hunk):
            number += line.tag != "-"
            if line.tag == "+":
                added[number] = at
    return added
