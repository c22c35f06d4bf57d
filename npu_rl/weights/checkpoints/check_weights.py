"""`weights check`: compare a checkpoint with its index, its config.json, transformers' model and a recipe."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from npu_rl.common.errors import HostError, NpuRlError
from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.weights.checkpoints.checkpoint_findings import CheckedFolder, WantedCheckpoint, check_folder
from npu_rl.weights.checkpoints.megatron_check import check_megatron, is_megatron_checkpoint
from npu_rl.weights.checkpoints.output_folder import unfinished_command
from npu_rl.weights.checkpoints.worker_pool import Task, Workers
from npu_rl.weights.tensors.npu_rl_tensors.cast_plan import SCALE_SUFFIX
from npu_rl.weights.tensors.npu_rl_tensors.hf_checkpoint import CONFIG, INDEX, listed


@dataclass(frozen=True)
class CheckReport:
    """A checkpoint that was checked.

    Attributes:
        model: transformers' class; None if its tensors were not compared.
        transformers: Version of transformers; None if it was not asked.
        unchecked: Why the tensors were not compared with the model's; empty if they were.
    """

    checked: CheckedFolder
    model: str | None = None
    transformers: str | None = None
    unchecked: str = ""

    @property
    def ok(self) -> bool:
        """Return whether the check found no errors."""
        return self.checked.ok

    def to_json(self) -> dict[str, Any]:
        """Return the report for `--json`, without findings."""
        checked = self.checked
        return {
            "ok": self.ok,
            "folder": str(checked.folder),
            "format": checked.megatron or "hf",
            "shards": checked.files if checked.checkpoint is None else len(checked.checkpoint.shards),
            "bytes": checked.bytes,
            "tensors": dict(sorted(checked.dtypes.items())),
            "model": self.model,
            "transformers": self.transformers,
            "unchecked": self.unchecked,
        }


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder looks like a Hugging Face checkpoint, or like unfinished output of any format."""
    if unfinished_command(folder) is not None:
        return True
    return (folder / CONFIG).exists() or (folder / INDEX).exists() or any(folder.glob("*.safetensors"))


def check_weights(folder: Path, workers: Workers, wanted: WantedCheckpoint | None) -> CheckReport:
    """Check a folder. Findings describe its faults; no tensor data is read.

    Raises:
        HostError: If the interpreter can't be run, or has no torch or transformers.
    """
    if is_megatron_checkpoint(folder) and unfinished_command(folder) is None:
        checked = check_megatron(folder, workers, wanted)
        return CheckReport(
            checked, unchecked="" if checked.megatron else "the folder's weights can't be read"
        )
    checked = check_folder(folder)
    if wanted is not None:
        wanted.compare_architecture(checked)
    if checked.checkpoint is None or not checked.tensors:
        return CheckReport(checked, unchecked="the folder's weights can't be read")
    try:
        answer = workers.run_one(Task("model_tensors", {"folder": str(folder)}, str(folder)))
    except HostError:
        raise
    except NpuRlError as error:
        checked.error("weights-config-model", folder / CONFIG, f"{error.what}. {error.why}")
        return CheckReport(checked, unchecked="transformers can't make the model of config.json")
    report = CheckReport(checked, answer["model"], answer["transformers"])
    if wanted is not None:
        wanted.compare_transformers(checked, answer["transformers"])
    if answer["model"] is None:
        kind = checked.checkpoint.config.get("model_type")
        why = f"transformers {answer['transformers']} has no model of the type {kind!r}"
        return replace(report, unchecked=why)
    _compare_tensors(checked, answer)
    _compare_tied(checked, answer, workers)
    return report


def _compare_tensors(checked: CheckedFolder, answer: Mapping[str, Any]) -> None:
    expected: Mapping[str, Sequence[int]] = answer["tensors"]
    ignored = [re.compile(pattern) for pattern in answer["ignored"]]
    model = f"{answer['model']} of transformers {answer['transformers']}"
    where = checked.folder
    assert checked.checkpoint is not None
    present = checked.checkpoint.weight_map.keys()
    missing = sorted(expected.keys() - present - set(answer["tied"]))
    unexpected = sorted(
        name
        for name in present - expected.keys()
        if not _is_known_beside(checked, name) and not any(p.search(name) for p in ignored)
    )
    shapes = [
        f"{name} is {list(shape)} and not {list(expected[name])}"
        for name, shape in sorted(checked.tensors.items())
        if name in expected and list(shape) != list(expected[name])
    ]
    if missing:
        message = f"{len(missing)} of {len(expected)} tensors of {model} are missing: {listed(missing)}"
        checked.error("weights-missing", where, message)
    if unexpected:
        message = f"{len(unexpected)} tensors are not {model}'s: {listed(unexpected)}"
        checked.error("weights-unexpected", where, message)
    if shapes:
        message = f"{len(shapes)} tensors have another shape than in {model}: {listed(shapes)}"
        checked.error("weights-shape", where, message)


def _compare_tied(checked: CheckedFolder, answer: Mapping[str, Any], workers: Workers) -> None:
    """Report stored tensors that are tied to others. Only the values of the output head are compared."""
    assert checked.checkpoint is not None
    stored = sorted(checked.checkpoint.weight_map.keys() & set(answer["tied"]))
    if not stored:
        return
    where = checked.folder
    if checked.ok and "lm_head.weight" in stored:
        found = workers.run_one(Task("tied_head", {"folder": str(where)}, str(where)))
        if found["difference"]:
            message = f"tie_word_embeddings is true, and {found['difference']}"
            fix = "if the head is the model's, set tie_word_embeddings to false in config.json; else remove the tensor"
            checked.error("weights-tied", where, message, fix)
            return
    message = f"tie_word_embeddings is true, so the stored {listed(stored)} may be ignored"
    checked.add("weights-tied", Severity.NOTE, where, message)


def _is_known_beside(checked: CheckedFolder, name: str) -> bool:
    """Return whether other findings cover this tensor: an FP8 scale, or part of multi-token prediction."""
    assert checked.checkpoint is not None
    return name in checked.mtp or name.endswith(SCALE_SUFFIX)
