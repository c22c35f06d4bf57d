"""Prompts, responses and scores in a run's samples/: a file per step, with one JSON object per line.

verl writes them (`_dump_generations`, verl/trainer/ppo/ray_trainer.py@v0.5.0) with the keys input, output, score and
step, what the reward function returned beside the score, and later versions the ground truth as gts. All of it is text
of a model, which may hold anything.
"""

from __future__ import annotations

import heapq
import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from npu_rl.common.bounded import NO_FILE, open_file, parse_json

Order = Literal["written", "best", "worst", "random"]

_STEP_FILE = re.compile(r"([0-9]{1,9})\.jsonl")
_LONGEST_LINE = 16 << 20  # bytes; a response of 128k tokens has below one
_SAMPLE = ("input", "output", "score", "step")


@dataclass(frozen=True)
class RunSample:
    """A sample.

    Attributes:
        reward: None if the trainer wrote no finite number.
        extra: What else was written of it, such as the ground truth.
    """

    step: int
    prompt: str
    response: str
    reward: float | None
    extra: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the sample as documented in docs/json.md."""
        return dict(vars(self))


@dataclass(frozen=True)
class ChosenSamples:
    """Some samples of a run.

    Attributes:
        samples: In the order that was asked for.
        seen: How many they were chosen from.
        skipped: Lines that are not a sample, or too long.
    """

    samples: tuple[RunSample, ...]
    seen: int
    skipped: int


def sample_steps(samples: Path, *, validation: bool = False) -> dict[int, Path]:
    """Return a run's sample files by step, in ascending order.

    Args:
        samples: The folder.
        validation: Of validations, not of training steps.
    """
    folder = samples / "validation" if validation else samples
    try:
        paths = list(folder.iterdir())
    except OSError as error:
        if error.errno in NO_FILE:
            return {}
        raise
    found = {int(match[1]): path for path in paths if (match := _STEP_FILE.fullmatch(path.name))}
    return dict(sorted(found.items()))


def choose_samples(files: dict[int, Path], order: Order, count: int, seed: int = 0) -> ChosenSamples:
    """Return selected samples from the files of some steps. Files are read once, and other samples aren't kept.

    Args:
        files: Files by step.
        order: written: the first ones. best, worst: by reward; those without one come last. random: the same ones for
            the same seed, of at most `count` files.
        count: At most so many.
        seed: Of the random choice.
    """
    choice = random.Random(seed)
    if order == "random" and len(files) > count:
        files = {step: files[step] for step in sorted(choice.sample(sorted(files), count))}
    counter = _Counter()
    found = (sample for step, path in files.items() for sample in read_samples(path, step, counter))
    if order == "best":
        chosen = heapq.nlargest(count, found, key=lambda one: _rank(one.reward, -math.inf))
    elif order == "worst":
        chosen = heapq.nsmallest(count, found, key=lambda one: _rank(one.reward, math.inf))
    elif order == "random":
        chosen = _reservoir(found, count, choice)
    else:
        chosen = []
        for sample in found:
            if len(chosen) < count:
                chosen.append(sample)
    return ChosenSamples(tuple(chosen), counter.seen, counter.skipped)


class _Counter:
    seen = 0
    skipped = 0


def read_samples(path: Path, step: int, counter: _Counter | None = None) -> Iterator[RunSample]:
    """Yield the samples of a file; invalid lines are skipped. A missing file yields nothing."""
    counter = counter or _Counter()
    try:
        file = open_file(path)
    except OSError as error:
        if error.errno in NO_FILE:
            return
        raise
    with file:
        while line := file.readline(_LONGEST_LINE):
            whole = line.endswith(b"\n") or len(line) < _LONGEST_LINE
            while not whole and (rest := file.readline(_LONGEST_LINE)):
                whole = rest.endswith(b"\n")
                line = b""
            if not line.strip() and whole and line:
                continue
            sample = _sample(line, step)
            if sample is None:
                counter.skipped += 1
            else:
                counter.seen += 1
                yield sample


def finite_number(value: object) -> float | None:
    """Return a number of a sample; None for anything else, for NaN, and for what no float holds."""
    try:
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
    except OverflowError:  # an integer of 309 digits or more
        return None


def _sample(line: bytes, step: int) -> RunSample | None:
    """Parse the sample of a line. Lone surrogates, which can't be printed, are replaced."""
    try:
        data = parse_json(line.decode("utf-8", "replace"))
    except ValueError:
        return None
    if not isinstance(data, dict) or "output" not in data:
        return None
    return RunSample(
        step,
        _text(data.get("input")),
        _text(data.get("output")),
        finite_number(data.get("score")),
        {_text(key): value for key, value in data.items() if key not in _SAMPLE},
    )


def _text(value: object) -> str:
    return str(value if value is not None else "").encode("utf-8", "replace").decode("utf-8")


def _rank(reward: float | None, missing: float) -> float:
    return missing if reward is None else reward


def _reservoir(samples: Iterator[RunSample], count: int, choice: random.Random) -> list[RunSample]:
    """Return `count` random samples, each with the same probability."""
    kept: list[RunSample] = []
    for number, sample in enumerate(samples):
        if len(kept) < count:
            kept.append(sample)
        elif (place := choice.randint(0, number)) < count:
            kept[place] = sample
    return kept
