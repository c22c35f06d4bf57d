"""A run's checkpoint: its location, its format, and the files that describe its model."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.errors import NpuRlError, WeightsError
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.training.record.run_record import RunRecord
from npu_rl.weights.tensors.npu_rl_tensors.hf_checkpoint import CONFIG, INDEX, SINGLE

_GOES_ON = "The run is going on: its trainer saves checkpoints and deletes older ones meanwhile."
_STEP = re.compile(r"global_step_(\d{1,9})|iter_(\d{7,9})")  # verl's and Megatron's names


@dataclass(frozen=True)
class RunCheckpoint:
    """A checkpoint of a run.

    Attributes:
        folder: What has the tensors.
        model: A folder with the model's config.json and tokenizer.
    """

    record: RunRecord
    step: int
    folder: Path
    model: Path


@contextlib.contextmanager
def explained_while_running(record: RunRecord) -> Iterator[None]:
    """Add to a checkpoint's error that the run is in progress, and so saves and deletes checkpoints.

    Raises:
        WeightsError: As it was, or in place of a file that has gone; with what to do.
    """
    try:
        yield
    except (WeightsError, FileNotFoundError) as error:
        if not record.is_locked:
            raise
        if isinstance(error, WeightsError):
            what, where, why = error.what, error.where, error.why
        else:
            what, why = f"A file of a checkpoint of run {record.name} is gone", None
            where = str(error.filename or record.checkpoints)
        raise WeightsError(
            what,
            where=where,
            why="\n".join(filter(None, (why, _GOES_ON))),
            hint="Repeat the command for the newest checkpoint, keep more of them (checkpoint.keep), or end the run "
            f"first: npu-rl runs stop {shlex.quote(str(record.folder))}",
        ) from error


def run_checkpoint(record: RunRecord, step: int | None, model: Path | None = None) -> RunCheckpoint:
    """Return a run's checkpoint of a step, by default its newest.

    Args:
        record: The run's.
        step: A step.
        model: A folder with config.json and tokenizer; by default the one beside it, else the recipe's model.path.

    Raises:
        WeightsError: If there is none, it is half-written, or nothing describes its model.
    """
    saved = _saved(record)
    newest = record.recorded_checkpoint
    if step is None:
        step = newest
    if step is None or (not saved and newest is None):
        raise WeightsError(
            f"Run {record.name} has no checkpoint",
            where=str(record.checkpoints),
            why="No step of it was saved to the end." if saved else "The folder is empty.",
            hint="Set checkpoint.every=N: the next run saves a checkpoint every N steps.",
        )
    there = ", ".join(map(str, sorted(saved))) or "none"
    if step not in saved:
        raise WeightsError(
            f"Run {record.name} has no checkpoint of step {step}",
            where=str(record.checkpoints),
            why=f"Steps that are there: {there}."
            + (" The trainer recorded it as its newest." if step == newest else ""),
            hint="Choose one with --step N.",
        )
    if newest is None or step > newest:
        raise WeightsError(
            f"The checkpoint of step {step} is not complete",
            where=str(saved[step]),
            why="The trainer records a step once its checkpoint is whole, and it has recorded "
            + ("none." if newest is None else f"{newest}."),
            hint="Wait until it is saved, or choose another with --step N."
            if saved.keys() - {step}
            else None,
        )
    folder, beside = _tensors(saved[step])
    return RunCheckpoint(record, step, folder, model or _model(record, folder, beside))


def _saved(record: RunRecord) -> dict[int, Path]:
    """Return the folders of checkpoints by step."""
    if not record.checkpoints.is_dir():
        return {}
    found: dict[int, Path] = {}
    for path in sorted(record.checkpoints.iterdir()):
        match = _STEP.fullmatch(path.name)
        if match is not None and path.is_dir():
            found[int(match[1] or match[2])] = path
    return found


def _tensors(saved: Path) -> tuple[Path, Path]:
    """Return the folder with the tensors, and the folder beside it with config.json and tokenizer.

    verl's actor/ has the ranks' files of FSDP, dist_ckpt/ of Megatron, or the tensors in huggingface/ themselves
    (verl/utils/checkpoint/@v0.5.0), and earlier model/mp_rank_* (@54c9b73); Megatron's own iter_* has mp_rank_*.
    """
    actor = saved / "actor" if (saved / "actor").is_dir() else saved
    if any((actor / "model").glob("mp_rank_*")):
        return actor / "model", actor / "hf_config_and_tokenizer"
    beside = actor / "huggingface"
    if (actor / "dist_ckpt" / ".metadata").is_file():
        return actor / "dist_ckpt", beside
    ranks = any(actor.glob("model_world_size_*_rank_*.pt")) or (actor / "fsdp_config.json").is_file()
    if not ranks and any((beside / name).is_file() for name in (INDEX, SINGLE)):
        return beside, beside
    return actor, beside


def _model(record: RunRecord, folder: Path, beside: Path) -> Path:
    if (beside / CONFIG).is_file():
        return beside
    named: Path | None = None
    why = "The run's recipe has no model.path."
    try:
        path = load_recipe(str(record.folder / "recipe.yaml")).recipe.model.path
    except NpuRlError as error:
        why = f"The run's recipe can't be read: {error.what}."
    else:
        named = None if path is None else Path(path)
    if named is not None and (named / CONFIG).is_file():
        return named
    raise WeightsError(
        "The checkpoint has no config.json",
        where=str(folder),
        why=f"There is no {beside.name}/{CONFIG} beside it. "
        + (why if named is None else f"{named}, model.path of the run's recipe, has no {CONFIG}."),
        hint="Pass a folder with the model's config.json and tokenizer: --model-config DIR",
    )
