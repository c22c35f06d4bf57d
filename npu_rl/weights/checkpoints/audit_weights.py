"""`weights audit`: every tensor and every value of one checkpoint against another."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_rl.common.errors import UsageError, WeightsError
from npu_rl.weights.checkpoints.output_folder import NoProgress, WorkProgress, made_by, unfinished_command
from npu_rl.weights.checkpoints.worker_pool import Task, Workers

LISTED = 1000  # names and differences of each kind that a report has


@dataclass(frozen=True)
class AuditOptions:
    """The inputs and options of a comparison.

    Attributes:
        config: Folder of the model's config.json, where neither side is a Hugging Face folder.
        experts_over_tensor: Whether experts of a legacy checkpoint are dealt out to the tensor parallel ranks
            (MindSpeed's moe_tp_extend_ep), which its shapes don't show.
        command: The command line, for the report.
    """

    a: Path
    b: Path
    config: Path | None
    experts_over_tensor: bool
    command: str


def audit_weights(
    options: AuditOptions, workers: Workers, watch: WorkProgress | None = None
) -> dict[str, Any]:
    """Compare two checkpoints, and return the report: what `--json` prints.

    Its `result` is "equal" if every value of A is finite and accounted for in B, and nothing else is there.

    Raises:
        UsageError: If they are one folder.
        WeightsError: If one of them can't be read, or is unfinished.
        HostError: If the interpreter has no torch, or a worker ends.
    """
    watch = watch or NoProgress()
    if options.a.resolve() == options.b.resolve():
        raise UsageError("Both checkpoints are the same folder", where=str(options.a))
    for folder in (options.a, options.b):
        _require_finished(folder)
    started = time.monotonic()
    arguments = {
        "of": {
            "a": str(options.a),
            "b": str(options.b),
            "config": None if options.config is None else str(options.config),
            "experts_over_tensor": options.experts_over_tensor,
        }
    }
    plan = workers.run_one(Task("audit.plan_audit", arguments, f"{options.a} and {options.b}"))
    groups = plan.pop("groups")
    watch.begin(plan.pop("bytes"), 0)
    tensors, values = Counter[str](), Counter[str]()
    differences: list[dict[str, Any]] = []
    not_finite: list[dict[str, Any]] = []
    done = 0

    def finished(value: Any) -> None:
        nonlocal done
        done += 1
        tensors.update(value["tensors"])
        values.update(value["values"])
        differences.extend(value["differences"])
        not_finite.extend(value["not_finite"])
        watch.shard(value["group"], done, len(groups))

    tasks = [
        Task("audit.audit_group", {**arguments, "names": names}, f"{options.a}: {names[0]}")
        for names in groups
    ]
    workers.run(tasks, finished, watch.advance)
    seconds = time.monotonic() - started
    counts = {state: {"tensors": tensors[state], "values": values[state]} for state in sorted(tensors)}
    return _report(options, plan, counts, differences, not_finite, seconds)


def _require_finished(folder: Path) -> None:
    """Raise WeightsError for a folder that an interrupted command has not filled."""
    command = unfinished_command(folder)
    if command is not None:
        raise WeightsError(
            f"The checkpoint is unfinished: `weights {command}` was interrupted",
            where=str(folder),
            hint=f"Run the same `npu-rl weights {command}` again: it resumes.",
        )


def _report(
    options: AuditOptions,
    plan: dict[str, Any],
    counts: dict[str, dict[str, int]],
    differences: list[dict[str, Any]],
    not_finite: list[dict[str, Any]],
    seconds: float,
) -> dict[str, Any]:
    lists = {name: plan.pop(name) for name in list(plan) if isinstance(plan[name], list)}
    one_sided = [name for name in lists if not name.startswith("mtp_") and lists[name]]
    equal = bool(counts) and not one_sided and not differences  # without a tensor nothing was proved
    compared = [state for state in counts if "copies" not in state]
    return {
        "command": options.command,
        **made_by(),
        "result": ("not finite" if not_finite else "equal") if equal else "different",
        **plan,
        "compared": {
            "tensors": sum(counts[state]["tensors"] for state in compared),
            "values": sum(counts[state]["values"] for state in compared),
        },
        "counts": counts,
        "differences": sorted(differences, key=lambda one: str(one["tensor"]))[:LISTED],
        "differences_in_all": len(differences),
        "not_finite": sorted(not_finite, key=lambda one: (one["side"], one["tensor"], one["where"]))[:LISTED],
        "not_finite_in_all": {
            "tensors": len(not_finite),
            "values": sum(one["values"] for one in not_finite),
        },
        **{name: of[:LISTED] for name, of in lists.items()},
        "one_sided_in_all": {name: len(of) for name, of in lists.items()},
        "seconds": round(seconds, 3),
    }
