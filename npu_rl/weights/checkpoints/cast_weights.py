"""`weights cast`: a checkpoint in DeepSeek's FP8 as one in BF16, shard by shard."""

from __future__ import annotations

import contextlib
import datetime
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import npu_rl
from npu_rl.common.disk import disk_errors, sync_folder, write_atomically
from npu_rl.weights.checkpoints.other_files import OtherFiles, other_files
from npu_rl.weights.checkpoints.output_folder import require_apart, require_space, require_unchanged
from npu_rl.weights.checkpoints.output_journal import NAME, OutputJournal
from npu_rl.weights.checkpoints.unfinished_files import remove_unfinished
from npu_rl.weights.checkpoints.worker_pool import Task, Workers, as_npu_rl_error
from npu_rl.weights.tensors.npu_rl_tensors.cast_plan import PlannedShard, cast_config, cast_rules
from npu_rl.weights.tensors.npu_rl_tensors.hf_checkpoint import CONFIG, INDEX, HfCheckpoint
from npu_rl.weights.tensors.npu_rl_tensors.tensor_error import TensorError


@dataclass(frozen=True)
class CastPlan:
    """All that a cast writes, found from the headers.

    Attributes:
        sizes: Bytes of each shard of the output, by file name.
        config: config.json of the output.
        config_changes: Its changes, as lines.
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
        workers: What is said of those on other hosts.
    """

    plan: CastPlan
    source: Path
    target: Path
    kept: int
    seconds: float
    workers: Mapping[str, Any] = field(default_factory=dict)

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
            **self.workers,
        }


class CastProgress:
    """What is told of a cast while it goes on; this one says nothing."""

    def begin(self, total: int, done: int) -> None:
        """Say how many bytes will be written, and how many of them are there."""

    def damaged(self, names: Sequence[str]) -> None:
        """Say which finished files are written again, since they are not what was written."""

    def advance(self, count: int) -> None:
        """Say that so many more bytes are written."""

    def shard(self, name: str, done: int, total: int) -> None:
        """Say that a shard is finished."""


def cast_weights(
    source: Path, target: Path, workers: Workers, device: str = "cpu", watch: CastProgress | None = None
) -> CastReport:
    """Cast a checkpoint, or continue a cast that was interrupted. Nothing of another cast is overwritten.

    The index is written last, so that an unfinished output is no checkpoint to any reader.

    Raises:
        UsageError: If the folders lie in one another, or the output's has other files.
        WeightsError: For an input that is damaged or not in DeepSeek's FP8, and an output of another input.
        HostError: If the disk is too small or fails, or the interpreter has no torch.
    """
    watch = watch or CastProgress()
    require_apart(source, target)
    started = time.monotonic()
    plan = plan_cast(source)
    if not (target / NAME).is_file():
        require_space(target, sum(plan.sizes.values()) + plan.others.size(source))
    with contextlib.closing(OutputJournal(target, source, plan.digest)) as journal:
        if journal.finished is not None:
            last = [name for name in (CONFIG, INDEX) if (source / name).is_file()]
            require_unchanged(target, plan.sizes, "cast", last)
            return CastReport(plan, source, target, len(plan.sizes), 0.0, workers.describe())
        journal.require_free(plan.last)
        done = journal.whole(plan.sizes)
        watch.damaged(journal.damaged)
        left = [name for name in plan.sizes if name not in done]
        remove_unfinished(target, (*plan.sizes, *plan.last))
        require_space(target, sum(plan.sizes[name] for name in left) + plan.others.size(source))
        watch.begin(sum(plan.sizes.values()), sum(plan.sizes[name] for name in done))

        def finished(value: Any) -> None:
            journal.add(value)
            watch.shard(value["shard"], len(journal.shards), len(plan.sizes))

        try:
            workers.run(_tasks(source, target, left, device), finished, watch.advance)
        finally:
            remove_unfinished(target, plan.sizes)
        journal.complete(plan.last)
        _write_others(plan, source, target)
        journal.finish({"npu_rl": npu_rl.__version__, "date": _now(), **plan.to_json()})
    return CastReport(plan, source, target, len(done), time.monotonic() - started, workers.describe())


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


def _tasks(source: Path, target: Path, shards: Sequence[str], device: str) -> list[Task]:
    return [
        Task(
            "cast_shard",
            {"input": str(source), "output": str(target), "shard": name, "device": device},
            str(source / name),
        )
        for name in shards
    ]


def _write_others(plan: CastPlan, source: Path, target: Path) -> None:
    """Write all but the shards, the index last."""
    plan.others.copy(source, target)
    with disk_errors(target):
        _write_json(target / CONFIG, plan.config)
        sync_folder(target)
        if (source / INDEX).is_file():
            weight_map = {tensor.source.name: shard.name for shard in plan.shards for tensor in shard.tensors}
            total = sum(tensor.size for shard in plan.shards for tensor in shard.tensors)
            index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
            _write_json(target / INDEX, index)
        sync_folder(target)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_atomically(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode(), sync=True)


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


@contextlib.contextmanager
def _tensor_errors() -> Iterator[None]:
    try:
        yield
    except TensorError as error:
        raise as_npu_rl_error(error) from error
