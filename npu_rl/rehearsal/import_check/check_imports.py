"""`verify --imports`: the origin of modules, conflicting packages, and places changed by patching at import."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from npu_rl.common.errors import HostError
from npu_rl.common.interpreter import Interpreter
from npu_rl.common.python_roots import INJECTED
from npu_rl.common.yaml_documents.finding import Finding, Severity, file_finding
from npu_rl.rehearsal.child_process import run_child
from npu_rl.rehearsal.import_check.changed_places import changed_places
from npu_rl.rehearsal.import_check.import_report import InterpreterReport
from npu_rl.rehearsal.import_check.locked_packages import package_findings
from npu_rl.rehearsal.import_check.place_check import (
    TITLE,
    child_variables,
    look_at_places,
    standin_roots,
)
from npu_rl.rehearsal.level_imports import expected_failures
from npu_rl.rehearsal.tree_modules import modules_of
from npu_rl.stack.sources.progress import Notify
from npu_rl.workspace.folder.receipt import bundled_manifest
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from npu_rl.workspace.packages.install_command import InstallPython, install_command
from npu_rl.workspace.verification.verify import Report

_LOOK_LIMIT = 120.0  # seconds to look for every module; 3,000 of them take 0.5 s on a local disk


def check_imports(paths: WorkspacePaths, report: Report, python: str, notify: Notify) -> InterpreterReport:
    """Check a verified workspace's imports with an interpreter, without writing to the tree.

    Args:
        report: The workspace's verification.
        python: The interpreter's path.

    Raises:
        HostError: If it can't be run.
        NpuRlError: If a child fails as a whole.
    """
    code, lock = paths.code, report.lock
    tops = _top_level_names(code)
    modules = modules_of(code, tops)
    environment = child_variables(lock.env, [INJECTED, code])
    first, *rest = run_child(
        "sources",
        {"modules": modules},
        code=code,
        python=Path(python),
        environment=environment,
        limit=_LOOK_LIMIT,
        title=TITLE,
    )
    found = _interpreter(first, python)
    findings = [*_source_findings(rest, found.path)]
    manifest = bundled_manifest(report.receipt.setup) or str(report.receipt.setup.get("manifest", ""))
    into = InstallPython(
        found.path,
        found.version,
        lock.host.get("python"),
        managed=found.managed,
    )
    install = install_command(paths, report.receipt.setup, into).replace("\n", "; ")
    count, of_packages = package_findings(manifest, lock, found, install)
    findings += of_packages
    places = changed_places(code, report.receipt)
    known = {module for modules in (expected_failures(report) or {}).values() for module in modules}
    standins = standin_roots(code, lock.device, found)
    states, of_places = look_at_places(
        code, tops, places, found.path, lock.device, lock.env, standins, notify, known
    )
    findings += of_places
    names = tuple(root.name for root in standins)
    return InterpreterReport(
        f"{found.path} (Python {found.version})", len(modules), count, states, names, tuple(findings)
    )


def _top_level_names(code: Path) -> list[str]:
    """Return the top-level names of a tree that Python can import: modules, and folders with modules."""
    found = {path.stem for path in code.glob("*.py")}
    found |= {path.name for path in code.iterdir() if path.is_dir() and next(path.rglob("*.py"), None)}
    return sorted(name for name in found if name.isidentifier())


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
        elif "copy" in line:
            what = f"a second copy is at {line['place']}, with {line['modules']} of the tree's modules"
            fix = "Uninstall it: a process without the run's PYTHONPATH would import it"
            yield file_finding("module-twice", Severity.ERROR, line["copy"], what, fix)
