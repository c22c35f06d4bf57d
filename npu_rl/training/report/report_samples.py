"""Samples for a report: the best, the worst and the last response of some steps, shortened for reading.

The trainer writes samples/STEP.jsonl, one response a line; a response is whatever a model has generated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import NO_FILE, open_file, parse_json
from npu_rl.training.record.recorded_run import RecordedRun
from npu_rl.training.record.samples import finite_number

_MOST_STEPS = 6  # of a kind: responses of training, and of validations
_MOST_READ = 1 << 23  # bytes of a step's file; one of 8,192 responses has some 100 MB
_HEAD, _TAIL = 2000, 1000  # characters of a long text as written into the page


Sample = tuple[str, str, float | None]
"""Prompt, response and reward of a sample."""


@dataclass(frozen=True)
class SampledStep:
    """Samples of a step.

    Attributes:
        samples: The chosen ones by kind, with texts shortened if they are long.
        responses: Number of responses that were read.
        whole: Whether these are all of the step's.
    """

    step: int
    validation: bool
    samples: dict[str, Sample]
    responses: int
    whole: bool


def sampled_steps(run: RecordedRun) -> list[SampledStep]:
    """Return samples of some steps that include the first and the last, training steps before validations.

    Raises:
        OSError: If the disk fails.
    """
    found = []
    for validation in (False, True):
        files = run.sample_files(validation=validation)
        steps, last = list(files), len(files) - 1
        chosen = (
            {steps[round(place * last / (_MOST_STEPS - 1))] for place in range(_MOST_STEPS)} if steps else ()
        )
        found += [_sampled(files[step], step, validation) for step in sorted(chosen)]
    return [one for one in found if one.samples]


def _sampled(path: Path, step: int, validation: bool) -> SampledStep:
    lines = list(_lines(path))
    rows = [row for line in lines if line is not None and (row := _row(line)) is not None]
    kinds: dict[int, str] = {}
    if rows:
        order = sorted(range(len(rows)), key=lambda index: (_value(rows[index]), index))
        for index, kind in ((order[-1], "best"), (order[0], "worst"), (len(rows) - 1, "last")):
            kinds[index] = f"{kinds[index]}, {kind}" if index in kinds else kind
    chosen = {kind: rows[index] for index, kind in kinds.items()}
    return SampledStep(step, validation, chosen, len(rows), None not in lines)


def _lines(path: Path) -> Iterator[bytes | None]:
    """Yield the lines of a file, followed by None if the file is longer than the limit."""
    try:
        file = open_file(path)
    except OSError as error:
        if error.errno in NO_FILE:
            return
        raise
    with file:
        left = _MOST_READ
        while left > 0 and (line := file.readline(left)):
            left -= len(line)
            yield line if line.endswith(b"\n") or left > 0 else None
        if file.read(1):
            yield None


def _row(line: bytes) -> Sample | None:
    try:
        data: Mapping[str, Any] = parse_json(line.decode("utf-8", "surrogateescape"))
        prompt, response = (_cut(str(data[key])) for key in ("input", "output"))
        return prompt, response, finite_number(data.get("score", data.get("reward")))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _cut(text: str) -> str:
    """Return a text, shortened to its start and end with the number of characters left out if it is long."""
    if len(text) <= _HEAD + _TAIL:
        return text
    return f"{text[:_HEAD]}\n[... {len(text) - _HEAD - _TAIL:,} characters left out ...]\n{text[-_TAIL:]}"


def _value(row: Sample) -> float:
    return -math.inf if row[2] is None else row[2]
