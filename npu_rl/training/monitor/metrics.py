"""Metrics of a run: stored as one JSON line per step, joined over attempts, and what they mean."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from npu_rl.common.disk import disk_errors, private

REWARDS = ("critic/score/mean", "critic/rewards/mean")
DIFFERENCE = "training/rollout_probs_diff_mean"
PHASES = ("gen", "reshard", "reward", "old_log_prob", "ref", "adv", "update_actor")


@dataclass(frozen=True)
class Point:
    """Metrics of one step; `time` is when they were read, in seconds since the epoch."""

    step: int
    time: float
    data: dict[str, float]


# -- the file ------------------------------------------------------------------------------------------


class MetricsWriter:
    """Appends metrics to a file, one JSON line per step, flushed immediately."""

    def __init__(self, path: Path) -> None:
        with disk_errors(path):
            self._file: IO[bytes] = open(path, "ab", opener=private)  # noqa: SIM115  it is closed by close

    def write(self, step: int, data: Mapping[str, float], now: float | None = None) -> Point:
        """Append one step.

        Args:
            now: Seconds since the epoch, by default the clock's.
        """
        point = Point(step, time.time() if now is None else now, dict(data))
        record = {
            "step": step,
            "time": round(point.time, 3),
            "data": {key: value if math.isfinite(value) else str(value) for key, value in data.items()},
        }
        self._file.write(json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n")
        self._file.flush()
        return point

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_metrics(path: Path) -> list[Point]:
    """Return the metrics of one attempt in order. Lines that a kill has cut are skipped; a missing file is empty."""
    points: list[Point] = []
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        for line in file:
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                data = {key: float(value) for key, value in record["data"].items()}
                points.append(Point(record["step"], record["time"], data))
    return points


def curve(run: Path) -> list[Point]:
    """Return the metrics of a run by step, merged over its attempts.

    An attempt that continued from a checkpoint replaces the steps of earlier attempts, since those are not in the
    model: those from `replaced_from` on. If it only validated in the step before, the values of both are merged, the
    later ones taking precedence.
    """
    numbered = sorted((int(path.parent.name), path) for path in run.glob("attempts/[0-9]*/metrics.jsonl"))
    joined: dict[int, Point] = {}
    for points in (read_metrics(path) for _, path in numbered):
        replaced = replaced_from(points) if points else math.inf
        joined = {step: point for step, point in joined.items() if step < replaced}
        for point in points:
            before = joined.get(point.step, point)
            joined[point.step] = Point(point.step, point.time, {**before.data, **point.data})
    return [joined[step] for step in sorted(joined)]


def replaced_from(points: Sequence[Point]) -> int:
    """Return the first step of earlier attempts that an attempt with these points, at least one, replaces.

    It is the attempt's first step, or the one after it if the trainer did not train there: a resumed one may begin
    with a validation of the step that it resumes from.
    """
    first = min(point.step for point in points)
    trained = any(seconds(point.data) is not None for point in points if point.step == first)
    return first if trained else first + 1


# -- what the numbers mean -----------------------------------------------------------------------------


def reward(data: Mapping[str, float]) -> float | None:
    """Return the mean reward of a step: the raw score, or else the reward after a KL penalty; None without both."""
    return next((data[key] for key in REWARDS if key in data), None)


def phase_seconds(data: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds per phase of a step; `reshard` is a part of `gen`."""
    return {phase: data[f"timing_s/{phase}"] for phase in PHASES if f"timing_s/{phase}" in data}


def seconds(data: Mapping[str, float]) -> float | None:
    """Return the duration of a step in seconds."""
    return data.get("timing_s/step", data.get("perf/time_per_step"))


def generated_batches(points: Sequence[Point]) -> int:
    """Return the number of batches generated for these steps.

    One a step, but for DAPO's trainer, which generates again where its filter leaves too few groups. Upstream's ends
    after as many batches as it has steps to train (recipe/dapo/dapo_ray_trainer.py:136@796871d).
    """
    counts = (point.data.get("train/num_gen_batches", 1.0) for point in points)
    return int(sum(count if math.isfinite(count) else 1.0 for count in counts))


def throughput(data: Mapping[str, float], dies_per_card: int = 1) -> tuple[float, float] | None:
    """Return tokens per second per die and per card; verl's perf/throughput is per die, published figures per card."""
    per_die = data.get("perf/throughput")
    return None if per_die is None else (per_die, per_die * dies_per_card)


def rewards(points: Iterable[Point]) -> list[tuple[int, float]]:
    """Return (step, mean reward) of the points with a finite reward."""
    pairs = ((point.step, reward(point.data)) for point in points)
    return [(step, value) for step, value in pairs if value is not None and math.isfinite(value)]
