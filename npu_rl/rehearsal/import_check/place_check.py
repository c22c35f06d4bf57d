"""Check that patched functions and classes are still in place after all patching at import."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from npu_rl.common.interpreter import Interpreter
from npu_rl.common.process import RUN_VARIABLE
from npu_rl.common.python_roots import APEX, INJECTED, NPU, REHEARSAL, VLLM
from npu_rl.common.yaml_documents.finding import Finding, Severity, file_finding
from npu_rl.rehearsal.child_process import run_child
from npu_rl.rehearsal.choose_levels import VLLM_STANDINS, vllm_version
from npu_rl.rehearsal.import_check.changed_places import ChangedPlace
from npu_rl.rehearsal.import_check.patching_modules import patching_modules
from npu_rl.rehearsal.level_imports import cause_of, is_fault
from npu_rl.stack.sources.progress import Notify
from npu_rl.training.host.vllm_environment import ENVIRONMENT as VLLM_ON_CPU

TITLE = "The check of imports"
_IMPORT_LIMIT = 900.0  # seconds to import what patches and is patched, torch and vLLM included
_START_LIMIT = 60.0


def child_variables(env: Mapping[str, str], roots: Sequence[Path]) -> dict[str, str]:
    """Return the environment of a run in this workspace, without this shell's Python variables."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "NPU_RL_"))}
    path = os.pathsep.join(map(str, roots))
    return {**kept, **env, "PYTHONPATH": path, RUN_VARIABLE: uuid.uuid4().hex}


def standin_roots(code: Path, device: str, python: Interpreter) -> tuple[Path, ...]:
    """Return the stand-ins needed to import an NPU stack without torch_npu."""
    if device != "npu" or "torch-npu" in python.packages:
        return ()
    has_engine = (code / "vllm").is_dir() and vllm_version(code) == VLLM_STANDINS
    return (
        NPU,
        *([APEX] if (code / "mindspeed_llm").is_dir() else []),
        *([VLLM] if has_engine else []),
    )


def look_at_places(
    code: Path,
    tops: Sequence[str],
    places: Sequence[ChangedPlace],
    python: str,
    device: str,
    env: Mapping[str, str],
    standins: Sequence[Path],
    notify: Notify,
    expected: Container[str] = (),
) -> tuple[dict[str, int], list[Finding]]:
    """Return the number of places by state, and a finding for each place that isn't the patched one.

    Args:
        tops: The top-level names of the tree.
        device: The manifest's.
        env: Variables that the manifest sets for each run.
        standins: Roots of stand-ins, before the tree on PYTHONPATH.
        expected: Modules that are known to fail here.

    Raises:
        NpuRlError: If the child fails as a whole.
    """
    if not places:
        return {}, []
    adaptors = patching_modules(code, tops, [place.dotted for place in places], device)
    notify(f"importing {len(adaptors)} modules that patch others, and what {len(places)} places are in")
    on_cpu = VLLM_ON_CPU if VLLM in standins else {}
    lines = run_child(
        "places",
        {"adaptors": adaptors, "places": [asdict(place) for place in places], "limit": _IMPORT_LIMIT},
        code=code,
        python=Path(python),
        environment={**child_variables(env, [INJECTED, REHEARSAL, *standins, code]), **on_cpu},
        limit=_IMPORT_LIMIT + _START_LIMIT,
        title=TITLE,
    )
    states: Counter[str] = Counter()
    findings = [*_failed_imports(lines, {place.module for place in places}, expected)]
    seen = set()
    for line in lines:
        if "place" in line:
            place = ChangedPlace(**{**line["place"], "patches": tuple(line["place"]["patches"])})
            seen.add(place)
            states[line["state"]] += 1
            findings += _place_finding(place, line["state"], line.get("by"))
    unseen = [place for place in places if place not in seen]
    states["unseen"] += len(unseen)
    end = next((line["fork"] for line in lines if "fork" in line), {"outcome": "hung", "output": ""})
    if end["outcome"] != "done":
        findings.append(_ended(end))
    return {state: count for state, count in sorted(states.items()) if count}, findings


def _failed_imports(
    lines: Sequence[Mapping[str, Any]], patched: Container[str], expected: Container[str]
) -> Iterator[Finding]:
    """Yield a finding per failed import: an error for a fault of the tree, but not for a missing package."""
    for line in lines:
        if "failed" in line:
            cause, where = cause_of(line), line.get("where") or line["failed"]
            what = f"{line['failed']} can't be imported: {cause}"
            is_known = line.get("unsupported") or line["failed"] in expected  # a stand-in's, or the list's
            what += ", so its patched places are not proven" if line["failed"] in patched else ""
            severity = Severity.ERROR if is_fault(cause) and not is_known else Severity.NOTE
            yield file_finding("import-fails", severity, where, what)


def _place_finding(place: ChangedPlace, state: str, by: str | None) -> Iterator[Finding]:
    of = ", ".join(place.patches)
    where = f"{place.file}:{place.first}"
    if state == "replaced":
        what = f"{place.dotted}, which {of} changes, is replaced at import by {by}"
        fix = "Patch what takes its place, or keep it from being imported"
        yield file_finding("patched-place-replaced", Severity.ERROR, where, what, fix)
    elif state == "same":
        what = f"{place.dotted}, which {of} changes, is replaced at import by {by}, which does the same"
        yield file_finding("patched-place-same", Severity.NOTE, where, what)
    elif state == "missing":
        what = f"{place.dotted}, which {of} changes, is not there after all imports"
        yield file_finding("patched-place-replaced", Severity.ERROR, where, what)
    elif state == "wrapped":
        what = f"{place.dotted}, which {of} changes, is called by {by}"
        yield file_finding("patched-place-wrapped", Severity.NOTE, where, what)
    elif state == "unclear":
        what = f"{place.dotted}, which {of} changes, is a {by}, whose code can't be seen"
        yield file_finding("patched-place-unclear", Severity.NOTE, where, what)


def _ended(end: Mapping[str, Any]) -> Finding:
    last = (str(end.get("output", "")).strip().splitlines() or ["nothing"])[-1]
    how = cause_of({**end, "in_tree": False})
    what = f"the process ended before all places were checked: {how}"
    return file_finding("import-ends", Severity.ERROR, last, what)
