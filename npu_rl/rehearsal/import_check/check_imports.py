"""`verify --imports`: where an interpreter finds a tree's modules, and its packages compared with the manifest's."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from npu_rl.common.errors import HostError
from npu_rl.common.interpreter import Interpreter
from npu_rl.common.printable import counted, one_line
from npu_rl.common.process import RUN_VARIABLE
from npu_rl.common.python_roots import INJECTED
from npu_rl.common.yaml_documents.finding import Finding, Severity, file_finding
from npu_rl.rehearsal.child_process import TrainingChild
from npu_rl.rehearsal.import_check.locked_packages import package_findings
from npu_rl.workspace.folder.receipt import bundled_manifest
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from npu_rl.workspace.packages.install_command import InstallPython, install_command
from npu_rl.workspace.verification.verify import Report

_SHOWN = 8  # findings of one rule that the text shows
_LIMIT = 120.0  # seconds to look for every module; 3,000 of them take 0.5 s on a local disk


@dataclass(frozen=True)
class InterpreterReport:
    """The findings on an interpreter and a tree.

    Attributes:
        python: The interpreter's path, with its version.
        locked_packages: Number of packages in the committed lock of packages; None if there is none for this
            interpreter.
        findings: Errors and notes, errors first.
    """

    python: str
    locked_packages: int | None
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Return whether the check found no errors."""
        return not any(found.severity is Severity.ERROR for found in self.findings)

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        lines: list[str] = []
        for rule, group in groupby(self.findings, key=lambda one: one.rule):
            every = list(group)
            lines += [one_line(line) for one in every[:_SHOWN] for line in one.lines()]
            if len(every) > _SHOWN:
                lines.append(f"{len(every) - _SHOWN} more [{rule}] (--json lists all)")
        locked = self.locked_packages
        compared = "" if locked is None else f", {counted(locked, 'locked package')} compared"
        errors = sum(one.severity is Severity.ERROR for one in self.findings)
        lines.append(
            f"imports by {self.python}{compared}: {counted(errors, 'error') if errors else 'as locked'}"
        )
        return lines


def check_imports(paths: WorkspacePaths, report: Report, python: str) -> InterpreterReport:
    """Check with an interpreter where a verified workspace's modules come from. Nothing of the tree is imported.

    Args:
        report: The workspace's verification.
        python: The interpreter's path.

    Raises:
        HostError: If it can't be run.
        NpuRlError: If the child fails as a whole.
    """
    lock, setup = report.lock, report.receipt.setup
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "NPU_RL_"))}
    path = os.pathsep.join(map(str, (INJECTED, paths.code)))
    environment = {**kept, **lock.env, "PYTHONPATH": path, RUN_VARIABLE: uuid.uuid4().hex}
    first, *rest = TrainingChild(paths.code, Path(python), environment).run("sources", {}, _LIMIT)
    found = _interpreter(first, python)
    into = InstallPython(found.path, found.version, lock.host.get("python"), managed=found.managed)
    install = install_command(paths, setup, into).replace("\n", "; ")
    manifest = bundled_manifest(setup) or str(setup.get("manifest", ""))
    locked, of_packages = package_findings(manifest, lock, found, install)
    findings = [*_source_findings(rest, found.path), *of_packages]
    order = list(Severity)
    findings.sort(key=lambda one: (order.index(one.severity), one.rule))
    return InterpreterReport(found.shown, locked, tuple(findings))


def _interpreter(line: Mapping[str, Any], python: str) -> Interpreter:
    try:
        return Interpreter(**line["python"])
    except (KeyError, TypeError) as error:
        raise HostError("The interpreter did not name its packages", where=python) from error


def _source_findings(lines: Sequence[Mapping[str, Any]], python: str) -> Iterator[Finding]:
    for line in lines:
        if "elsewhere" in line:
            name, place = line["elsewhere"], line["place"]
            what = f"resolves to {place}, not to the tree" if place else "is in the tree, and is not found"
            fix = f"Remove what is there: {python} -m pip uninstall, or from that folder" if place else ""
            yield file_finding("module-elsewhere", Severity.ERROR, name, what, fix)
        else:
            fix = "Uninstall it: a process without the run's PYTHONPATH would import it"
            what = f"a second copy is at {line['place']}"
            yield file_finding("module-twice", Severity.ERROR, line["copy"], what, fix)
