"""Samples for a report: the best, the worst and a random response of some steps, shortened for reading.

The trainer writes samples/STEP.jsonl, one response a line; a response is whatever a model has generated.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import NO_FILE, open_file, parse_json
from npu_rl.common.masking import Secrets
from npu_rl.training.record.recorded_run import RecordedRun
from npu_rl.training.record.samples import finite_number
from npu_rl.training.report.markup import written_length

MOST_STEPS = 10  # of a kind: responses of training, and of validations
_MOST_READ = 1 << 23  # bytes of a step's file; one of 8,192 responses has some 100 MB
_HEAD, _TAIL = 2000, 1000  # characters of a long text as written into the page


@dataclass(frozen=True)
class ReportedSample:
    """A response and its prompt, both shortened if they are long."""

    kind: str
    prompt: str
    response: str
    score: float | None


@dataclass(frozen=True)
class SampledStep:
    """Samples of a step.

    Attributes:
        responses: Number of responses that were looked at.
        whole: Whether these are all of the step's.
        unread: Number of lines that are not samples.
    """

    step: int
    validation: bool
    samples: tuple[ReportedSample, ...]
    responses: int
    whole: bool
    unread: int


def sampled_steps(run: RecordedRun, secrets: Secrets) -> tuple[SampledStep, ...]:
    """Return samples of some of the steps, training steps first.

    Args:
        run: The run. Its random samples are always the same.
        secrets: Masked in the texts, where they appear word by word.

    Raises:
        OSError: If the disk fails.
    """
    found = []
    for validation in (False, True):
        files = run.sample_files(validation=validation)
        for step in _spread(list(files), MOST_STEPS):
            one = _sampled(files[step], step, validation, run.record.id, secrets)
            if one is not None:
                found.append(one)
    return tuple(found)


def cut(text: str) -> str:
    """Return a text, shortened to its start and end with the number of characters left out if it is long."""
    if len(text) <= _HEAD + _TAIL and written_length(text) <= _HEAD + _TAIL:
        return text
    head, tail = _fitting(text[:_HEAD], _HEAD), _fitting(text[: -_TAIL - 1 : -1], _TAIL)
    left_out = len(text) - head - tail
    return f"{text[:head]}\n[... {left_out:,} characters left out ...]\n{text[len(text) - tail :]}"


def _fitting(text: str, most: int) -> int:
    """Return how many of the first characters are at most so long as written."""
    written = 0
    for number, character in enumerate(text):
        written += written_length(character)
        if written > most:
            return number
    return len(text)


def _spread(steps: list[int], most: int) -> list[int]:
    """Return `count` evenly spread steps, including the first and the last."""
    if len(steps) <= most:
        return steps
    return [steps[round(place * (len(steps) - 1) / (most - 1))] for place in range(most)]


def _sampled(path: Path, step: int, validation: bool, seed: str, secrets: Secrets) -> SampledStep | None:
    rows: list[ReportedSample] = []
    unread = 0
    whole = True
    try:
        for line in _lines(path):
            if line is None:
                whole = False
            elif (row := _row(line, secrets)) is not None:
                rows.append(row)
            else:
                unread += 1
    except OSError as error:
        if error.errno in NO_FILE:
            return None
        raise
    return SampledStep(step, validation, _chosen(rows, f"{seed}:{step}"), len(rows), whole, unread)


def _lines(path: Path) -> Iterator[bytes | None]:
    """Yield the lines of a file, followed by None if the file is longer than the limit."""
    with open_file(path) as file:
        left = _MOST_READ
        while line := file.readline(left):
            left -= len(line)
            if left == 0 and not line.endswith(b"\n"):
                yield None  # the line goes on beyond the limit
                return
            yield line
        if file.read(1):
            yield None


def _row(line: bytes, secrets: Secrets) -> ReportedSample | None:
    try:
        data: Mapping[str, Any] = parse_json(line.decode("utf-8", "surrogateescape"))
        prompt, response = (secrets.mask(_plain(data[key])) for key in ("input", "output"))
        return ReportedSample("", prompt, response, finite_number(data.get("score", data.get("reward"))))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _plain(value: object) -> str:
    return value if isinstance(value, str) else repr(value)


def _chosen(rows: list[ReportedSample], seed: str) -> tuple[ReportedSample, ...]:
    """Return the best sample, the worst one and a random other one, if there are that many."""
    if not rows:
        return ()
    order = sorted(range(len(rows)), key=lambda index: (_value(rows[index]), index))
    kinds = {order[-1]: "best"}
    kinds.setdefault(order[0], "worst")
    others = [index for index in order if index not in kinds]
    if others:
        digest = hashlib.sha256(seed.encode()).digest()
        kinds[others[int.from_bytes(digest[:8], "big") % len(others)]] = "random"
    return tuple(
        ReportedSample(kind, cut(rows[index].prompt), cut(rows[index].response), rows[index].score)
        for index, kind in kinds.items()
    )


def _value(row: ReportedSample) -> float:
    return -math.inf if row.score is None else row.score
