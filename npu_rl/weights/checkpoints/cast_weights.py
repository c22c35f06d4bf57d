"""`weights cast`: convert a checkpoint from DeepSeek's FP8 to BF16, shard by shard."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_rl.common.disk import disk_errors, sync_folder
from npu_rl.weights.checkpoints.other_files import OtherFiles, other_files
from npu_rl.weights.checkpoints.output_folder import (
    NOTE,
    OutputFolder,
    WorkProgress,
    require_apart,
    require_space,
    write_json,
)
from npu_rl.weights.checkpoints.worker_pool import Task, Workers, as_npu_rl_error
from npu_rl.weights.tensors.npu_rl_tensors.cast_plan import PlannedShard, cast_config, cast_rules
from npu_rl.weights.tensors.npu_rl_tensors.hf_checkpoint import CONFIG, INDEX, HfCheckpoint
from npu_rl.weights.tensors.npu_rl_tensors.tensor_error import TensorError


@dataclass(frozen=True)
class CastPlan:
    """The output of a cast, planned from the headers of the input.

    Attributes:
        sizes: Bytes of each shard of the output, by file name.
        config: config.json of the output.
        config_changes: One line for each change to config.json.
    """

    checkpoint: HfCheckpoint
    shards: tuple[PlannedShard, ...]
    sizes: dict[str, int]
    config: dict[str, Any]
    config_changes: tuple[str, ...]
    others: OtherFiles
    digest: str

    @property
    def last(self) -> tuple[str, ...]:
        """Names of the files that are written after the shards."""
        index = (INDEX,) if (self.checkpoint.folder / INDEX).is_file() else ()
        return (*self.others.copied, CONFIG, *index)

    def to_json(self) -> dict[str, Any]:
        """Return the figures for `--json`."""
        tensors = [tensor for shard in self.shards for tensor in shard.tensors]
        kept = [tensor.dtype for tensor in tensors if tensor.scale is None]
        return {
            "shards": len(self.sizes),
            "bytes": sum(self.sizes.values()),
            "tensors": {
                "cast": len(tensors) - len(kept),
                "copied": {dtype: kept.count(dtype) for dtype in sorted(set(kept))},
                "scales_left_out": sum(len(shard.scales) for shard in self.shards),
                "mtp_left_out": sorted(name for shard in self.shards for name in shard.mtp),
            },
            "config": list(self.config_changes),
            "files": {"copied": list(self.others.copied), "left_out": list(self.others.left)},
        }


@dataclass(frozen=True)
class CastReport:
    """A finished cast.

    Attributes:
        kept: Shards that an earlier, interrupted cast had finished.
        seconds: Of this cast; 0 if there was nothing left to do.
    """

    plan: CastPlan
    source: Path
    target: Path
    kept: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the report for `--json`."""
        figures = self.plan.to_json()
        return {
            "input": str(self.source),
            "output": str(self.target),
            "digest": self.plan.digest,
            **figures,
            "shards_kept": self.kept,
            "seconds": round(self.seconds, 3),
        }


def cast_weights(
    source: Path, target: Path, workers: Workers, device: str = "cpu", watch: WorkProgress | None = None
) -> CastReport:
    """Cast a checkpoint, or continue a cast that was interrupted. Nothing of another cast is overwritten.

    The index is written last, so that an unfinished output is no checkpoint to any reader.

    Raises:
        UsageError: If the folders lie in one another, or the output's has other files.
        WeightsError: For an input that is damaged or not in DeepSeek's FP8, and an output of another input.
        HostError: If the disk is too small or fails, or the interpreter has no torch.
    """
    require_apart(source, target)
    started = time.monotonic()
    plan = plan_cast(source)
    beside = plan.others.size(source)
    if not (target / NOTE).is_file():
        require_space(target, sum(plan.sizes.values()) + beside)
    with contextlib.closing(OutputFolder(target, "cast", source, plan.digest)) as output:
        if output.files is not None:
            output.require_unchanged()
            return CastReport(plan, source, target, len(plan.sizes), 0.0)

        def task(name: str) -> Task:
            arguments = {"input": str(source), "output": str(target), "shard": name, "device": device}
            return Task("cast_shard", arguments, str(source / name))

        done = output.write(plan.sizes, beside, task, workers, watch or WorkProgress())
        _write_others(plan, source, target)
        output.finish([*plan.sizes, *plan.last])
    return CastReport(plan, source, target, done, time.monotonic() - started)


def plan_cast(source: Path) -> CastPlan:
    """Read index, config.json and all headers, and plan the cast. Raises WeightsError, HostError."""
    with _tensor_errors(), disk_errors(source):
        checkpoint = HfCheckpoint(source)
        shards = tuple(cast_rules(checkpoint).plan(checkpoint))
        config, changes = cast_config(checkpoint.config)
        sizes = {shard.name: _planned_size(checkpoint, shard) for shard in shards if shard.tensors}
        others = other_files(source, checkpoint.shards)
        return CastPlan(checkpoint, shards, sizes, config, tuple(changes), others, checkpoint.digest())


def _planned_size(checkpoint: HfCheckpoint, shard: PlannedShard) -> int:
    return len(shard.begin(checkpoint.header(shard.name))) + sum(tensor.size for tensor in shard.tensors)


def _write_others(plan: CastPlan, source: Path, target: Path) -> None:
    """Write all files except the shards; the index is written last."""
    plan.others.copy(source, target)
    with disk_errors(target):
        write_json(target / CONFIG, plan.config)
        sync_folder(target)
        if (source / INDEX).is_file():
            weight_map = {tensor.source.name: shard.name for shard in plan.shards for tensor in shard.tensors}
            total = sum(tensor.size for shard in plan.shards for tensor in shard.tensors)
            index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
            write_json(target / INDEX, index)
        sync_folder(target)


@contextlib.contextmanager
def _tensor_errors() -> Iterator[None]:
    try:
        yield
    except TensorError as error:
        raise as_npu_rl_error(error) from error
