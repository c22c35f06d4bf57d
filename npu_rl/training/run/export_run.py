"""`weights export`: write a run's checkpoint as a Hugging Face folder that names its origin."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import read_json
from npu_rl.common.disk import alive, disk_errors, remove_tree, sync_folder, write_atomically
from npu_rl.common.errors import UsageError, WeightsError
from npu_rl.training.record.recorded_run import recorded_run
from npu_rl.training.record.saved_checkpoints.run_checkpoint import RunCheckpoint
from npu_rl.weights.checkpoints.audit_weights import AuditOptions, audit_weights
from npu_rl.weights.checkpoints.convert_weights import ConvertOptions, convert_weights
from npu_rl.weights.checkpoints.output_folder import NOTE, WorkProgress, made_by
from npu_rl.weights.checkpoints.staging_folder import remove_left_over, staging_folder
from npu_rl.weights.checkpoints.worker_pool import Workers
from npu_rl.weights.tensors.npu_rl_tensors.conversion.units import OutputLayout
from npu_rl.weights.tensors.npu_rl_tensors.hf_checkpoint import CONFIG
from npu_rl.weights.tensors.npu_rl_tensors.part_file import write_json

REPORT = "npu-rl-export.json"
_CARD = "README.md"


@dataclass(frozen=True)
class ExportOptions:
    """The input and the target of an export.

    Attributes:
        target: A folder that does not exist.
        experts_over_tensor: As of an audit, of a legacy checkpoint.
        command: The command line, for the model's metadata.
    """

    checkpoint: RunCheckpoint
    target: Path
    experts_over_tensor: bool
    command: str


def export_run(options: ExportOptions, workers: Workers, watch: WorkProgress | None = None) -> dict[str, Any]:
    """Export a checkpoint, and return npu-rl-export.json. The folder gets its name once it is audited.

    Raises:
        UsageError: If the target exists, or lies in the run.
        WeightsError: If the checkpoint is damaged or of an unknown layout, or the audit finds a difference.
        HostError: If the disk is too small or fails, or the interpreter has no torch.
    """
    source, target = options.checkpoint, options.target
    with disk_errors(target):
        remove_left_over(target)
    _require_new(options)
    started = time.monotonic()
    origin = _origin(options)
    staged, lock = staging_folder(target)
    convert = ConvertOptions(
        *(source.folder, staged, OutputLayout("hf"), source.model, options.experts_over_tensor, "export"),
        metadata=_header(origin),
    )
    with contextlib.ExitStack() as held:
        with disk_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(alive(lock))
        held.callback(remove_tree, staged)
        written = convert_weights(convert, workers, watch)
        (staged / NOTE).unlink()  # of work that can be continued
        config_changes = _set_dtype(staged, written["values"])
        content = {
            **origin,
            "checkpoint": written["input"],
            "output": str(target),
            "shards": written["files"],
            **{name: written[name] for name in ("bytes", "tensors", "values")},
            "config": config_changes,
            "copied": [name for name in written["copied"] if name not in (REPORT, _CARD)],
            "audit": _audited(options, staged, workers),
            "seconds": round(time.monotonic() - started, 3),
        }
        _write_provenance(staged, content)
        _put_in_place(staged, target)
    return content


def _require_new(options: ExportOptions) -> None:
    target, run = options.target.resolve(), options.checkpoint.record.folder.resolve()
    if os.path.lexists(options.target):
        raise UsageError(
            "The output folder exists",
            where=str(options.target),
            why="An export overwrites nothing.",
            hint="Choose another folder, or remove that one.",
        )
    if run == target or run in target.parents:
        raise UsageError(
            "The output folder is inside the run's folder",
            where=str(options.target),
            hint="Choose a folder outside of the run's record.",
        )


def _origin(options: ExportOptions) -> dict[str, Any]:
    """Return the facts that identify the origin of the weights."""
    record = options.checkpoint.record
    run = recorded_run(record.folder.parent, record.name)
    ran = run.recipe_of_step(options.checkpoint.step)
    return {
        **made_by(),
        "command": options.command,
        "run": record.name,
        "run_id": record.id,
        "step": options.checkpoint.step,
        "recipe": record.facts.get("recipe"),
        "recipe_files": ran.files,
        "recipe_digest": ran.digest,
        "overrides": list(ran.overrides),
        "manifest": record.facts.get("manifest"),
        "lock": run.lock.get("digest"),
        "tree": record.facts.get("tree"),
        "commit": record.facts.get("commit"),
        "proven": record.unproven is None,
        "unproven": record.unproven,
    }


def _header(origin: dict[str, Any]) -> dict[str, str]:
    """Return the entries of each shard's `__metadata__`, all of them strings."""
    names = ("run", "run_id", "step", "recipe", "manifest", "lock", "tree", "commit", "command", "date")
    return {
        f"npu_rl.{name}": str(origin[name]) for name in (*names, "unproven") if origin[name] is not None
    } | {"npu_rl.version": str(origin["npu_rl"])}


def _set_dtype(staged: Path, values: dict[str, int]) -> list[str]:
    """Set the most frequent dtype in config.json. Returns a line on the change."""
    content = dict(read_json(staged / CONFIG))
    most = max(values, key=lambda dtype: values[dtype])
    key = "dtype" if "dtype" in content and "torch_dtype" not in content else "torch_dtype"
    changes = []
    if content.get(key) != most:
        changes.append(f"{key}: {content.get(key)} -> {most}")
        with disk_errors(staged):
            write_json(staged / CONFIG, {**content, key: most})
    return changes


def _audited(options: ExportOptions, staged: Path, workers: Workers) -> dict[str, Any]:
    """Compare every value of the checkpoint with the export. Raises WeightsError for any difference."""
    source = options.checkpoint
    compared = AuditOptions(source.folder, staged, source.model, options.experts_over_tensor, options.command)
    content = audit_weights(compared, workers)
    content["b"]["path"] = str(options.target)
    if content["result"] == "equal" and content["counts"].keys() <= {"equal", "copies"}:
        return content
    first = next(iter(content["differences"]), None)
    sides = {name: count for name, count in content["one_sided_in_all"].items() if count}
    raise WeightsError(
        "The export differs from the checkpoint",
        where=str(source.folder),
        why=f"{content['differences_in_all']} tensors differ"
        + (f", such as {first['tensor']} at {first['index']}." if first else f"; on one side only: {sides}."),
        hint="Nothing was put in place. If the checkpoint was written to meanwhile, run again; else check the disk.",
    )


def _write_provenance(staged: Path, content: dict[str, Any]) -> None:
    of = {name: content[name] for name in ("run", "step", "recipe", "manifest", "lock", "tree", "command")}
    rows = "".join(f"| {name} | `{value}` |\n" for name, value in of.items())
    warning = "" if content["proven"] else "\nThe run's code was not as locked, so the run is unproven.\n"
    card = (
        f"---\nlibrary_name: transformers\n---\n\n# {content['run']}, step {content['step']}\n\n"
        f"Exported by npu-rl {content['npu_rl']} on {content['date']}; every value was compared with the run's "
        f"checkpoint ({REPORT}).\n{warning}\n| | |\n|---|---|\n{rows}"
    )
    with disk_errors(staged):
        write_atomically(staged / _CARD, card.encode(), sync=True)
        write_json(staged / REPORT, content)


def _put_in_place(staged: Path, target: Path) -> None:
    with disk_errors(target):
        sync_folder(staged)
        try:
            staged.rename(target)  # fails on a folder with anything in it, and on a file
        except OSError as error:
            if not os.path.lexists(target):
                raise
            raise UsageError(
                "The output folder was made by another command meanwhile",
                where=str(target),
                hint="Choose another folder.",
            ) from error
        sync_folder(target.parent)
