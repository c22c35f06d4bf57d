"""The level *train*: the trainer on one rank, its rollout stood in for by transformers with weights of its own."""

from __future__ import annotations

import statistics

from npu_rl.errors import NpuRlError, RecipeError
from npu_rl.rehearsal.rehearsal_report import TrainPart
from npu_rl.rehearsal.scale_recipe import scaled
from npu_rl.training import train
from npu_rl.training.monitor.metrics import Point, rewards, seconds
from npu_rl.training.monitor.screen import Screen
from npu_rl.training.prepare import Prepared, compose
from npu_rl.training.run_record import RunRecord


def rehearse_train(prepared: Prepared, record: RunRecord, screen: Screen) -> TrainPart:
    """What came of it. Raises train.Stopped if a person ends it."""
    recipe, changed = scaled(prepared.recipe, record.name)
    part = TrainPart(changed=changed, run=str(record.folder))
    try:
        demand_mindspeed(prepared, "train")
        attempt_small(prepared.with_recipe(recipe), record, screen, part)
    except train.RunStopped:
        raise
    except NpuRlError as error:
        part.failure = str(error)
    read_curve(part, record)
    return part


def attempt_small(
    small: Prepared, record: RunRecord, screen: Screen, part: TrainPart, *, transfer: float | None = None
) -> None:
    """Train a recipe that is scaled down. transfer: how far rollout and actor may differ; None is with the rollout
    that has weights of its own, whose limit is known. Raises NpuRlError."""
    standin = transfer is None
    sketch = small.command(record.folder.parent, record.id, 1, None, rollout_standin=standin)
    composed = compose(small, sketch)
    trained = train.run_attempt(
        small, record, composed.config, screen, rollout_standin=standin, transfer=transfer
    )
    part.seconds = trained.ended.seconds


def read_curve(part: TrainPart, record: RunRecord) -> None:
    """Fill in what the record's metrics say, and where its counts are."""
    part.usage += [attempt.usage for attempt in record.attempts[-1:]]
    points = record.curve()
    part.curve = rewards(points)
    part.transfer = _transfer(points)
    took = [value for value in (seconds(point.data) for point in points) if value is not None]
    part.seconds_per_step = statistics.median(took) if took else None


def has_mindspeed(prepared: Prepared) -> bool:
    """Whether torch_npu has to be stood in for: MindSpeed imports it wherever it is imported itself."""
    return prepared.recipe.megatron and (prepared.layout.code / "mindspeed").is_dir()


def demand_mindspeed(prepared: Prepared, level: str) -> None:
    """On a CPU it is MindSpeed that gives Megatron-core its layers, in place of Transformer Engine."""
    if prepared.recipe.megatron and not has_mindspeed(prepared):
        raise RecipeError(
            f"The level `{level}` can rehearse the Megatron backend only with MindSpeed in the tree",
            where=prepared.loaded.where("actor", "strategy"),
            why=f"The manifest {prepared.lock.manifest} does not take it.",
            hint="--rehearse=imports and --rehearse=layout need none.",
        )


def _transfer(points: list[Point]) -> float | None:
    """The largest difference in the first ten steps, while the policy is as it began."""
    found = [
        p.data["training/rollout_probs_diff_mean"]
        for p in points[:10]
        if "training/rollout_probs_diff_mean" in p.data
    ]
    return max(found, default=None)
