"""Rehearsal level *imports*: the trainer's module, what a step may import and what patches change, each in a process.

What can't be imported is listed by cause. It fails the level if every step imports it or its cause is in a file that a
patch changes, but for packages that are not installed. A tree has modules for other releases, too: cann-recipes-train's
verl has workers for vLLM 0.5.4, which its vLLM 0.9.1 is not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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
_WORKERS_SINCE_0_8 = "verl.workers.engine_workers"
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
        fault: Whether it fails the level.
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


@dataclass(frozen=True)
class ModulesOfRun:
    """The modules to import.

    Attributes:
        modules: The trainer's, then what a step may import, what patches change, and the runtime.
        required: Those that every step imports: the trainer's, its workers, and the classes of its sections.
        files: The files that patches change, and the runtime's.
    """

    modules: tuple[str, ...]
    required: frozenset[str]
    files: frozenset[str]


def modules_of_run(code: Path, recipe: Recipe, report: Report) -> ModulesOfRun:
    """Return the modules of a run of a recipe.

    Args:
        code: The code folder.
        report: The workspace's verification.
    """
    entry = recipe.trainer.module
    required = {entry, *(dotted.rpartition(".")[0] for dotted in recipe.trainer.sections.values())}
    if not recipe.has_own_keys:
        required |= {f"verl.workers.{'megatron' if recipe.megatron else 'fsdp'}_workers", _WORKERS_SINCE_0_8}
    hunks = report.receipt.hunks
    files = {str(hunk["file"]) for hunk in hunks if (hunk["root"], hunk["state"]) == ("code", "in place")}
    files |= {str(file.relative_to(code)) for file in (code / _RUNTIME).rglob("*.py")}
    dotted = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in files}
    importable = {name for name in dotted if "." in name and name.replace(".", "").isidentifier()}
    found = {*executed_modules(code, entry), *required, *importable} - {entry}
    modules = (entry, *sorted(name for name in found if file_of(code, name)))
    return ModulesOfRun(modules, frozenset(required), frozenset(files))


def rehearse_imports(
    child: TrainingChild, of_run: ModulesOfRun, notify: Notify, *, limit: float = _MODULE_LIMIT
) -> ImportReport:
    """Import each module in a process that has imported the trainer's, without writing to the tree.

    Args:
        notify: Called with a note on what is done.
        limit: Seconds for one import.

    Raises:
        NpuRlError: If the interpreter as a whole fails.
    """
    modules = of_run.modules
    notify(f"importing {modules[0]}, then {len(modules) - 1} modules on their own")
    begun = monotonic()
    job = {"modules": modules, "limit": limit, "jobs": _PARALLEL_IMPORTS}
    lines = child.run("imports", job, _LOAD_TIMEOUT + limit * len(modules) / _PARALLEL_IMPORTS)
    if lost := set(modules) - {line["module"] for line in lines}:
        raise NpuRlError("The rehearsal of imports did not report all modules", why=", ".join(sorted(lost)))
    failures = (_failure(line, of_run, child.code) for line in lines if line["outcome"] != "done")
    in_order = sorted(failures, key=lambda one: (one.cause, one.module))
    return ImportReport(modules[0], len(modules), tuple(in_order), round(monotonic() - begun, 1))


def _failure(line: Mapping[str, Any], of_run: ModulesOfRun, code: Path) -> ImportFailure:
    module, cause, where = line["module"], cause_of(line), line.get("where")
    place = where.rpartition(":")[0] if where else str((file_of(code, module) or code).relative_to(code))
    lacking = cause.startswith((_NEEDS, _UNSUPPORTED)) and module != of_run.modules[0]
    fault = not lacking and (module in of_run.required or place in of_run.files)
    message = line.get("text") or (line.get("output", "").strip().splitlines() or [""])[-1]
    return ImportFailure(module, cause, fault, where, message)


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
