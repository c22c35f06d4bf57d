"""Rehearsal level *imports*: every module of the patched packages, each imported on its own.

Failures are grouped by cause and compared with a committed list, so that a patch or a new pin that breaks an import
is told from what can't be imported on this kind of machine anyway.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from npu_rl.errors import NpuRlError
from npu_rl.rehearsal.child_process import run_child
from npu_rl.rehearsal.tree_modules import modules_of

_MODULE_LIMIT = 60.0  # seconds one import may take
_SIDE_BY_SIDE = 2
_LOADING = 300.0  # seconds the heavy libraries may take to load
_SHOWN = 6  # modules named per cause on the screen


@dataclass(frozen=True)
class Failure:
    """A module that can't be imported. `where` is file:line in the tree, `message` what was said, if anything."""

    module: str
    cause: str
    where: str | None = None
    message: str = ""


@dataclass(frozen=True)
class ChangedCause:
    """A module that fails, but for another cause than the committed list has."""

    module: str
    expected: str
    cause: str


@dataclass(frozen=True)
class ImportReport:
    """What importing every module of `packages` gave, and how that differs from the committed list, if there is one."""

    packages: tuple[str, ...]
    modules: int
    failures: tuple[Failure, ...]
    seconds: float
    slowest: tuple[tuple[str, float], ...] = ()
    compared: bool = False
    newly_failing: tuple[Failure, ...] = ()
    no_longer_failing: tuple[ChangedCause, ...] = ()  # `cause` is "imports" or "gone"
    changed: tuple[ChangedCause, ...] = ()

    @property
    def imported(self) -> int:
        """How many modules were imported."""
        return self.modules - len(self.failures)

    @property
    def causes(self) -> dict[str, tuple[str, ...]]:
        """Cause -> modules, both sorted."""
        return {cause: tuple(f.module for f in group) for cause, group in _grouped(self.failures).items()}

    @property
    def ok(self) -> bool:
        """With a committed list: nothing fails newly, or turned into a fault. Without: nothing is a fault."""
        if self.compared:
            return not self.newly_failing and not any(is_fault(change.cause) for change in self.changed)
        return not any(is_fault(failure.cause) for failure in self.failures)

    def to_json(self) -> dict[str, Any]:
        """Plain data for the run record and for --json."""
        return {
            "ok": self.ok,
            "packages": list(self.packages),
            "modules": self.modules,
            "imported": self.imported,
            "seconds": self.seconds,
            "slowest": [{"module": module, "seconds": seconds} for module, seconds in self.slowest],
            "causes": {
                cause: {
                    "fault": is_fault(cause),
                    "modules": [failure.module for failure in group],
                    "where": next((failure.where for failure in group if failure.where), None),
                }
                for cause, group in _grouped(self.failures).items()
            },
            "compared": self.compared,
            "newly_failing": [vars(failure) for failure in self.newly_failing],
            "no_longer_failing": [vars(change) for change in self.no_longer_failing],
            "changed": [vars(change) for change in self.changed],
        }

    def lines(self) -> list[str]:
        """The report for people."""
        said = [f"{self.imported} of {self.modules} modules of {', '.join(self.packages)} import"]
        for cause, group in _grouped(self.failures).items():
            said.append(f"  {len(group):>4}  {cause}  {_some(failure.module for failure in group)}")
        for failure in self.newly_failing:
            said.append(f"newly failing: {failure.module}: {failure.cause}" + _at(failure))
        for change in self.changed:
            said.append(f"fails for another cause: {change.module}: {change.cause} (was: {change.expected})")
        for change in self.no_longer_failing:
            now = "imports" if change.cause == "imports" else "is no longer there"
            said.append(f"no longer failing: {change.module} {now} (was: {change.expected})")
        return said


def rehearse_imports(
    code: Path,
    packages: Sequence[str],
    python: Path,
    environment: Mapping[str, str],
    expected: Mapping[str, Sequence[str]] | None,
    tell: Callable[[str], None],
    *,
    limit: float = _MODULE_LIMIT,
) -> ImportReport:
    """Import every module of `packages` in the tree `code` with the interpreter `python`.

    `environment` is that of the training processes. `expected` is the committed list, cause -> modules
    (`expected.read_expected`), or None. One import may take `limit` seconds. Writes nothing into the tree.
    Raises NpuRlError if the tree lacks a package or the interpreter fails as a whole.
    """
    modules = modules_of(code, packages)
    tell(f"importing {len(modules)} modules of {', '.join(packages)}, each on its own")
    begun = monotonic()
    lines = run_child(
        "imports",
        {"modules": modules, "limit": limit, "jobs": _SIDE_BY_SIDE},
        code=code,
        python=python,
        environment=environment,
        limit=_LOADING + limit * len(modules) / _SIDE_BY_SIDE,
    )
    results = {line["module"]: line for line in lines if "module" in line}
    lost = [module for module in modules if module not in results]
    if lost:
        raise NpuRlError("The rehearsal of imports left modules out", why=", ".join(lost))
    report = _report(packages, results, monotonic() - begun)
    return report if expected is None else compare(report, expected, modules)


def compare(
    report: ImportReport, expected: Mapping[str, Sequence[str]], modules: Sequence[str]
) -> ImportReport:
    """The report held against a committed list, cause -> modules; of that, only what lies in the report's packages."""
    known = {
        module: cause
        for cause, group in expected.items()
        for module in group
        if any(module == package or module.startswith(f"{package}.") for package in report.packages)
    }
    now = {failure.module: failure for failure in report.failures}
    there = set(modules)
    return ImportReport(
        report.packages,
        report.modules,
        report.failures,
        report.seconds,
        report.slowest,
        compared=True,
        newly_failing=tuple(failure for module, failure in now.items() if module not in known),
        no_longer_failing=tuple(
            ChangedCause(module, cause, "imports" if module in there else "gone")
            for module, cause in sorted(known.items())
            if module not in now
        ),
        changed=tuple(
            ChangedCause(module, known[module], failure.cause)
            for module, failure in now.items()
            if module in known and known[module] != failure.cause
        ),
    )


def _report(packages: Sequence[str], results: Mapping[str, Any], seconds: float) -> ImportReport:
    failures = [_failure(line) for line in results.values() if line["outcome"] != "done"]
    times = sorted(
        ((line["module"], line["seconds"]) for line in results.values()), key=lambda pair: -pair[1]
    )
    return ImportReport(
        tuple(packages),
        len(results),
        tuple(sorted(failures, key=lambda failure: failure.module)),
        round(seconds, 1),
        tuple(times[:3]),
    )


def _failure(line: Mapping[str, Any]) -> Failure:
    said = line.get("text") or (line["output"].strip().splitlines() or [""])[-1]
    return Failure(line["module"], cause_of(line), line.get("where"), said)


def _grouped(failures: Iterable[Failure]) -> dict[str, list[Failure]]:
    groups: dict[str, list[Failure]] = {}
    for failure in sorted(failures, key=lambda failure: (failure.cause, failure.module)):
        groups.setdefault(failure.cause, []).append(failure)
    return groups


def _some(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return ", ".join(every[:_SHOWN]) + more


def _at(failure: Failure) -> str:
    return f" at {failure.where}" if failure.where else ""


# Modules a build makes, so that a tree of sources never has them: extension modules, and version files.
_BUILT = re.compile(r"(?:_C|_cpp|\._version|\.vllm_flash_attn\..+)$|\._[A-Za-z]+_C_|_C\.")
_MISSING = "needs "
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")


def cause_of(found: Mapping[str, Any]) -> str:
    """The cause in a child's line about a module that failed (`imports.py` of the children).

    `needs X`: a package that isn't installed, or a part of the tree that only a build makes. `the tree lacks X`: a
    module the tree's own packages should have. Otherwise the exception, or how the process ended.
    """
    outcome = found["outcome"]
    if outcome == "hung":
        return "hung"
    if outcome == "signal":
        return f"signal {found['status']}"
    if outcome == "exited" or "status" in found:
        return f"exited {found['status']}"
    if "missing" in found:
        lacking = found["in_tree"] and not _BUILT.search(found["missing"])
        return f"the tree lacks {found['missing']}" if lacking else f"{_MISSING}{found['missing']}"
    text = _ADDRESS.sub("0x…", found["text"])
    return f"{found['type']}: {text}" if text else str(found["type"])


def is_fault(cause: str) -> bool:
    """Whether a cause is a fault of tree or interpreter, not just something that isn't installed here."""
    return not cause.startswith(_MISSING)


def read_expected(text: str, where: str) -> dict[str, tuple[str, ...]]:
    """Parse such a list. `where` names the file in errors. Raises NpuRlError."""
    import yaml

    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as problem:
        raise NpuRlError(
            "A list of expected imports can't be read", where=where, why=str(problem)
        ) from problem
    data = {} if data is None else data
    if not isinstance(data, dict):
        raise NpuRlError("A list of expected imports is a mapping, cause: [modules]", where=where)
    expected: dict[str, tuple[str, ...]] = {}
    causes: dict[str, str] = {}
    for cause, modules in data.items():
        if not isinstance(modules, list) or not all(isinstance(module, str) for module in modules):
            raise NpuRlError(f"The modules of cause {cause!r} must be a list of names", where=where)
        for module in modules:
            if module in causes:
                why = f"{causes[module]!r} and {cause!r}"
                raise NpuRlError(f"{module} is listed under two causes", where=where, why=why)
            causes[module] = str(cause)
        expected[str(cause)] = tuple(modules)
    return expected
