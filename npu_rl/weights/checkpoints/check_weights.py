"""`weights check`: compare a checkpoint with its index, its config.json, transformers' model and a recipe."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from npu_rl.common.errors import HostError, NpuRlError
from npu_rl.common.yaml_documents.finding import Severity
from npu_rl.weights.checkpoints.checkpoint_findings import CheckedFolder, WantedCheckpoint, check_folder
from npu_rl.weights.checkpoints.megatron_check import check_megatron, is_megatron_checkpoint
from npu_rl.weights.checkpoints.output_folder import unfinished_command
from npu_rl.weights.checkpoints.worker_pool import Task, Workers
from npu_rl.weights.tensors.npu_rl_tensors.cast_plan import SCALE_SUFFIX
from npu_rl.weights.tensors.npu_rl_tensors.hf_checkpoint import CONFIG, INDEX, HfCheckpoint, listed

_UNREADABLE = "the folder's weights can't be read"


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder looks like a Hugging Face checkpoint, or like unfinished output of any format."""
    if unfinished_command(folder) is not None:
        return True
    return (folder / CONFIG).exists() or (folder / INDEX).exists() or any(folder.glob("*.safetensors"))


def check_weights(folder: Path, workers: Workers, wanted: WantedCheckpoint | None) -> CheckedFolder:
    """Check a folder. Findings describe its faults; no tensor data is read.

    Raises:
        HostError: If the interpreter can't be run, or has no torch or transformers.
    """
    if is_megatron_checkpoint(folder) and unfinished_command(folder) is None:
        checked = check_megatron(folder, workers, wanted)
        checked.unchecked = "" if checked.format != "hf" else _UNREADABLE
        return checked
    checked = check_folder(folder)
    if wanted is not None:
        wanted.compare_architecture(checked)
    if checked.checkpoint is None or not checked.tensors:
        checked.unchecked = _UNREADABLE
        return checked
    try:
        answer = workers.run_one(Task("model_tensors.model_tensors", {"folder": str(folder)}, str(folder)))
    except HostError:
        raise
    except NpuRlError as error:
        checked.error("weights-config-model", folder / CONFIG, f"{error.what}. {error.why}")
        checked.unchecked = "transformers can't make the model of config.json"
        return checked
    checked.model, checked.transformers = answer["model"], answer["transformers"]
    if wanted is not None:
        wanted.compare_transformers(checked, answer["transformers"])
    if answer["model"] is None:
        kind = checked.checkpoint.config.get("model_type")
        checked.unchecked = f"transformers {answer['transformers']} has no model of the type {kind!r}"
        return checked
    _compare_tensors(checked, checked.checkpoint, answer)
    _compare_tied(checked, checked.checkpoint, answer, workers)
    return checked


def _compare_tensors(checked: CheckedFolder, checkpoint: HfCheckpoint, answer: Mapping[str, Any]) -> None:
    expected: Mapping[str, Sequence[int]] = answer["tensors"]
    ignored = [re.compile(pattern) for pattern in answer["ignored"]]
    model = f"{answer['model']} of transformers {answer['transformers']}"
    present = checkpoint.weight_map.keys()
    missing = sorted(expected.keys() - present - set(answer["tied"]))
    unexpected = sorted(
        name
        for name in present - expected.keys() - checked.mtp  # other findings cover those, and scales of FP8
        if not name.endswith(SCALE_SUFFIX) and not any(pattern.search(name) for pattern in ignored)
    )
    shapes = [
        f"{name} is {list(shape)} and not {list(expected[name])}"
        for name, shape in sorted(checked.tensors.items())
        if name in expected and list(shape) != list(expected[name])
    ]
    lacks = f"{len(missing)} of {len(expected)} tensors of {model} are missing"
    for rule, names, message in (
        ("weights-missing", missing, lacks),
        ("weights-unexpected", unexpected, f"{len(unexpected)} tensors are not {model}'s"),
        ("weights-shape", shapes, f"{len(shapes)} tensors have another shape than in {model}"),
    ):
        if names:
            checked.error(rule, checked.folder, f"{message}: {listed(names)}")


def _compare_tied(
    checked: CheckedFolder, checkpoint: HfCheckpoint, answer: Mapping[str, Any], workers: Workers
) -> None:
    """Report stored tensors that are tied to others. Only the values of the output head are compared."""
    stored = sorted(checkpoint.weight_map.keys() & set(answer["tied"]))
    if not stored:
        return
    where = checked.folder
    if checked.ok and "lm_head.weight" in stored:
        found = workers.run_one(Task("audit.tied_head", {"folder": str(where)}, str(where)))
        if found["difference"]:
            message = f"tie_word_embeddings is true, and {found['difference']}"
            fix = "if the head is the model's, set tie_word_embeddings to false in config.json; else remove the tensor"
            checked.error("weights-tied", where, message, fix)
            return
    message = f"tie_word_embeddings is true, so the stored {listed(stored)} may be ignored"
    checked.add("weights-tied", Severity.NOTE, where, message)
