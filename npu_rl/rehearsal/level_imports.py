"""Rehearsal level *imports*: import every module of the patched packages, each in its own process.

Failures are grouped by cause and compared with a committed list. So an import that a patch or a new pin breaks differs
from one that can't work on this kind of machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

from npu_rl.common.bounded import parse_yaml, read_file
from npu_rl.common.bundled import data_root
from npu_rl.common.errors import NpuRlError
from npu_rl.rehearsal.child_process import run_child
from npu_rl.rehearsal.tree_modules import modules_of
from npu_rl.workspace.verification.verify import Report

_MODULE_LIMIT = 60.0  # seconds for one import
_PARALLEL_IMPORTS = 2
_LOAD_TIMEOUT = 300.0  # seconds to load torch and the other large libraries
_LARGEST_LIST = 1 << 20  # bytes
_MODULES_SHOWN = 6  # modules named per cause in the text report


@dataclass(frozen=True)
class ImportFailure:
    """A module that can't be imported.

    Attributes:
        module: Its dotted name.
        cause: What `cause_of` returns.
        where: "file:line" in the tree, if known.
        message: The exception's text or the last line of output; may be empty.
    """

    module: str
    cause: str
    where: str | None = None
    message: str = ""


@dataclass(frozen=True)
class ChangedCause:
    """A module whose failure has a cause other than the committed list's."""

    module: str
    expected: str
    cause: str


@dataclass(frozen=True)
class ImportReport:
    """The result of importing all modules of some packages, and its difference from the committed list.

    Attributes:
        seconds: Duration of the level.
        slowest: The three slowest modules, with seconds.
        executed: Number of modules of other packages, which a step executes.
        compared: Whether there is a committed list.
        newly_failing: Failures that are not in the list.
        no_longer_failing: Entries of the list that import now, or that are gone; `cause` says which.
        changed: Failures with another cause than in the list.
    """

    packages: tuple[str, ...]
    modules: int
    failures: tuple[ImportFailure, ...]
    seconds: float
    slowest: tuple[tuple[str, float], ...] = ()
    executed: int = 0
    compared: bool = False
    newly_failing: tuple[ImportFailure, ...] = ()
    no_longer_failing: tuple[ChangedCause, ...] = ()  # `cause` is "imports" or "gone"
    changed: tuple[ChangedCause, ...] = ()

    @property
    def imported(self) -> int:
        """Number of modules that were imported."""
        return self.modules - len(self.failures)

    @property
    def causes(self) -> dict[str, tuple[str, ...]]:
        """Modules by cause, both sorted."""
        return {cause: tuple(f.module for f in group) for cause, group in _grouped(self.failures).items()}

    @property
    def ok(self) -> bool:
        """Return whether no module has a new failure or fault, or, without a committed list, no failure is a fault."""
        if self.compared:
            return not self.newly_failing and not any(is_fault(change.cause) for change in self.changed)
        return not any(is_fault(failure.cause) for failure in self.failures)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON types, for the run record and --json."""
        return {
            "ok": self.ok,
            "packages": list(self.packages),
            "modules": self.modules,
            "imported": self.imported,
            "executed": self.executed,
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
        """Return the report as lines of text."""
        also = f" and {self.executed} that a step executes" if self.executed else ""
        lines = [f"{self.imported} of {self.modules} modules import: of {', '.join(self.packages)}{also}"]
        for cause, group in _grouped(self.failures).items():
            lines.append(f"  {len(group):>4}  {cause}  {_first_names(failure.module for failure in group)}")
        for failure in self.newly_failing:
            lines.append(f"newly failing: {failure.module}: {failure.cause}" + _location(failure))
        for change in self.changed:
            lines.append(f"fails for another cause: {change.module}: {change.cause} (was: {change.expected})")
        for change in self.no_longer_failing:
            now = "imports" if change.cause == "imports" else "is no longer there"
            lines.append(f"no longer failing: {change.module} {now} (was: {change.expected})")
        return lines


def rehearse_imports(
    code: Path,
    packages: Sequence[str],
    python: Path,
    environment: Mapping[str, str],
    expected: Mapping[str, Sequence[str]] | None,
    notify: Callable[[str], None],
    *,
    executed: Sequence[str] = (),
    entry: str | None = None,
    limit: float = _MODULE_LIMIT,
) -> ImportReport:
    """Import every module of some packages, and additional modules, without writing to the tree.

    Args:
        expected: The committed list, modules by cause, or None.
        notify: Called with a note on what is done.
        executed: Modules of other packages that a step executes. Some can only be imported after others, such as those
            of Megatron-core 0.8, which import each other: one that fails is imported again after `entry`, as in a run.
        entry: The trainer's module.
        limit: Seconds for one import.

    Raises:
        NpuRlError: If the tree lacks a package, or the interpreter as a whole fails.
    """
    modules = modules_of(code, packages)
    more = sorted(set(executed) - set(modules))
    also = f" and {len(more)} others that a step executes" if more else ""
    notify(f"importing {len(modules)} modules of {', '.join(packages)}{also}, each on its own")
    modules += more
    begun = monotonic()

    def imported(names: Sequence[str], after: str | None = None) -> dict[str, Mapping[str, Any]]:
        lines = run_child(
            "imports",
            {"modules": names, "after": after, "limit": limit, "jobs": _PARALLEL_IMPORTS},
            code=code,
            python=python,
            environment=environment,
            limit=_LOAD_TIMEOUT + limit * len(names) / _PARALLEL_IMPORTS,
        )
        results: dict[str, Mapping[str, Any]] = {line["module"]: line for line in lines if "module" in line}
        if lost := [name for name in names if name not in results]:
            raise NpuRlError("The rehearsal of imports did not report all modules", why=", ".join(lost))
        return results

    results = imported(modules)
    again = [
        name for name in more if results[name]["outcome"] != "done" and is_fault(cause_of(results[name]))
    ]
    if again and entry is not None:
        results |= imported(again, entry)
    report = _report(packages, results, monotonic() - begun, len(more))
    return report if expected is None else compare(report, expected, modules)


def compare(
    report: ImportReport, expected: Mapping[str, Sequence[str]], modules: Sequence[str]
) -> ImportReport:
    """Return the report with its differences from a committed list, for the modules and the report's packages."""
    there = set(modules)
    known = {
        module: cause
        for cause, group in expected.items()
        for module in group
        if module in there or _is_in(module, report.packages)
    }
    now = {failure.module: failure for failure in report.failures}
    return replace(
        report,
        compared=True,
        newly_failing=tuple(
            failure
            for module, failure in now.items()
            if module not in known and (_is_in(module, report.packages) or is_fault(failure.cause))
        ),
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


def _is_in(module: str, packages: Sequence[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _report(
    packages: Sequence[str], results: Mapping[str, Any], seconds: float, executed: int
) -> ImportReport:
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
        executed=executed,
    )


def _failure(line: Mapping[str, Any]) -> ImportFailure:
    lines = line.get("text") or (line["output"].strip().splitlines() or [""])[-1]
    return ImportFailure(line["module"], cause_of(line), line.get("where"), lines)


def _grouped(failures: Iterable[ImportFailure]) -> dict[str, list[ImportFailure]]:
    groups: dict[str, list[ImportFailure]] = {}
    for failure in sorted(failures, key=lambda failure: (failure.cause, failure.module)):
        groups.setdefault(failure.cause, []).append(failure)
    return groups


def _first_names(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - _MODULES_SHOWN} more" if len(every) > _MODULES_SHOWN else ""
    return ", ".join(every[:_MODULES_SHOWN]) + more


def _location(failure: ImportFailure) -> str:
    return f" at {failure.where}" if failure.where else ""


# Modules that only a build creates, so that no source tree has them: extension modules and version files.
_BUILD_PRODUCT = re.compile(r"(?:_C|_cpp|\._version|\.vllm_flash_attn\..+)$|\._[A-Za-z]+_C_|_C\.")
_NEEDS = "needs "
_UNSUPPORTED = "NoCpuVersion: "  # of an operator, which a stand-in does not have
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")


def cause_of(found: Mapping[str, Any]) -> str:
    """Return the cause of a failed import from the child's output line (imports.py of the children).

    `needs X`: a package is not installed, or only a build creates that module. `the tree lacks X`: the tree's own
    packages should have that module. Otherwise the exception, or how the process ended.
    """
    outcome = found["outcome"]
    if outcome == "hung":
        return "hung"
    if outcome == "signal":
        return f"signal {found['status']}"
    if outcome == "exited" or "status" in found:
        return f"exited {found['status']}"
    if "missing" in found:
        lacking = found["in_tree"] and not _BUILD_PRODUCT.search(found["missing"])
        return f"the tree lacks {found['missing']}" if lacking else f"{_NEEDS}{found['missing']}"
    text = _ADDRESS.sub("0x…", found["text"])
    return f"{found['type']}: {text}" if text else str(found["type"])


def is_fault(cause: str) -> bool:
    """Return whether a cause is a fault of the tree or the interpreter, not just a missing package or CPU version."""
    return not cause.startswith((_NEEDS, _UNSUPPORTED))


def expected_failures(report: Report) -> dict[str, tuple[str, ...]] | None:
    """Return the committed list NAME.imports.yaml beside a workspace's manifest; None if it is missing."""
    beside = Path(str(report.receipt.setup.get("manifest", ""))).with_suffix(".imports.yaml")
    bundled = data_root() / "manifests" / f"{report.lock.manifest}.imports.yaml"
    place = beside if beside.is_file() else bundled
    if not place.is_file():
        return None
    return read_expected(read_file(place, _LARGEST_LIST).decode("utf-8", "replace"), str(place))


def read_expected(text: str, where: str) -> dict[str, tuple[str, ...]]:
    """Parse a committed list of expected failures: modules by cause.

    Args:
        where: Its file, for errors.

    Raises:
        NpuRlError: If it is malformed or has a module twice.
    """
    try:
        data = parse_yaml(text)
    except ValueError as problem:
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
