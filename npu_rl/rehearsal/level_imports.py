"""Rehearsal level *imports*: the trainer's module, what a step imports and what patches change, each in a process.

A module that needs a package which is not installed is listed; what can't be imported for another reason is a failure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from time import monotonic
from typing import Any

from npu_rl.common.errors import NpuRlError
from npu_rl.recipes.recipe.schema import Recipe
from npu_rl.rehearsal.child_process import TrainingChild
from npu_rl.rehearsal.executed_modules import executed_modules, file_of
from npu_rl.stack.sources.progress import Notify
from npu_rl.workspace.verification.verify import Report

_RUNTIME = "npu_rl_runtime"
_MODULE_LIMIT = 120.0  # seconds for one import
_PARALLEL_IMPORTS = 2
_LOAD_TIMEOUT = 300.0  # seconds to load torch and the other large libraries
_MODULES_SHOWN = 6  # modules named per cause in the text report


@dataclass(frozen=True)
class ImportFailure:
    """A module that can't be imported.

    Attributes:
        module: Its dotted name.
        cause: What `cause_of` returns.
        fault: Whether it fails the level: the cause is not just a missing package, or this is the trainer's module.
        where: "file:line" in the tree, if known.
        message: The exception's text or the last line of output; may be empty.
    """

    module: str
    cause: str
    fault: bool
    where: str | None = None
    message: str = ""


@dataclass(frozen=True)
class ImportReport:
    """The result of importing a trainer's modules."""

    entry: str
    modules: int
    failures: tuple[ImportFailure, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Return whether no failure is a fault."""
        return not any(failure.fault for failure in self.failures)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON types, for the run record and --json."""
        return {"ok": self.ok, **asdict(self)}

    def lines(self) -> list[str]:
        """Return the report as lines of text, faults first."""
        imported = self.modules - len(self.failures)
        lines = [f"{imported} of {self.modules} modules import: {self.entry}, of a step, and patched ones"]
        for cause, group in groupby((one for one in self.failures if not one.fault), lambda one: one.cause):
            names = [one.module for one in group]
            more = f" and {len(names) - _MODULES_SHOWN} more" if len(names) > _MODULES_SHOWN else ""
            lines.append(f"  {len(names):>4}  {cause}  {', '.join(names[:_MODULES_SHOWN])}{more}")
        for one in self.failures:
            if one.fault:
                place = f" at {one.where}" if one.where else ""
                last = "" if one.message in one.cause else f": {one.message}"
                lines.append(f"FAILED {one.module}: {one.cause}{place}{last}")
        return lines


def required_modules(code: Path, recipe: Recipe, report: Report) -> list[str]:
    """Return the trainer's module, then what a step imports, what patches change, and the runtime.

    Args:
        code: The code folder.
        report: The workspace's verification.
    """
    entry = recipe.trainer.module
    classes = {dotted.rpartition(".")[0] for dotted in recipe.trainer.sections.values()}
    hunks = report.receipt.hunks
    files = {
        Path(str(hunk["file"])) for hunk in hunks if (hunk["root"], hunk["state"]) == ("code", "in place")
    }
    files |= {file.relative_to(code) for file in (code / _RUNTIME).rglob("*.py")}
    dotted = {
        ".".join(file.with_suffix("").parts).removesuffix(".__init__")
        for file in files
        if file.suffix == ".py"
    }
    importable = {name for name in dotted if "." in name and name.replace(".", "").isidentifier()}
    found = {*executed_modules(code, entry), *classes, *importable} - {entry}
    return [entry, *sorted(name for name in found if file_of(code, name))]


def rehearse_imports(
    child: TrainingChild, modules: Sequence[str], notify: Notify, *, limit: float = _MODULE_LIMIT
) -> ImportReport:
    """Import each module in a process that has imported the trainer's, without writing to the tree.

    Args:
        modules: As of `required_modules`.
        notify: Called with a note on what is done.
        limit: Seconds for one import.

    Raises:
        NpuRlError: If the interpreter as a whole fails.
    """
    notify(f"importing {modules[0]}, then {len(modules) - 1} modules on their own")
    begun = monotonic()
    job = {"modules": modules, "limit": limit, "jobs": _PARALLEL_IMPORTS}
    lines = child.run("imports", job, _LOAD_TIMEOUT + limit * len(modules) / _PARALLEL_IMPORTS)
    if lost := set(modules) - {line["module"] for line in lines}:
        raise NpuRlError("The rehearsal of imports did not report all modules", why=", ".join(sorted(lost)))
    failures = (_failure(line, modules[0]) for line in lines if line["outcome"] != "done")
    in_order = sorted(failures, key=lambda one: (one.cause, one.module))
    return ImportReport(modules[0], len(modules), tuple(in_order), round(monotonic() - begun, 1))


def _failure(line: Mapping[str, Any], entry: str) -> ImportFailure:
    cause = cause_of(line)
    fault = not cause.startswith((_NEEDS, _UNSUPPORTED)) or line["module"] == entry
    message = line.get("text") or (line.get("output", "").strip().splitlines() or [""])[-1]
    return ImportFailure(line["module"], cause, fault, line.get("where"), message)


# Modules that only a build creates, so that no source tree has them: extension modules and version files.
_BUILD_PRODUCT = re.compile(r"(?:_C|_cpp|\._version|\.vllm_flash_attn\..+)$|\._[A-Za-z]+_C_|_C\.")
_NEEDS = "needs "
_UNSUPPORTED = "NoCpuVersion: "  # of an operator, which a stand-in does not have


def cause_of(found: Mapping[str, Any]) -> str:
    """Return the cause of a failed import from the child's output line (imports.py of the children).

    `needs X`: a package is not installed, or only a build creates that module. `the tree lacks X`: the tree's own
    packages should have that module. Otherwise the exception, or how the process ended.
    """
    if found["outcome"] != "raised":
        return " ".join(str(found[key]) for key in ("outcome", "status") if key in found)
    if "missing" in found:
        lacking = found["in_tree"] and not _BUILD_PRODUCT.search(found["missing"])
        return f"the tree lacks {found['missing']}" if lacking else f"{_NEEDS}{found['missing']}"
    return f"{found['type']}: {found['text']}".removesuffix(": ")
