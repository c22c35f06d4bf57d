"""The format and names of a step's metrics in a trainer's log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from npu_rl.training.monitor.alarm import Alarm
from npu_rl.training.monitor.log_lines import speaker_and_message
from npu_rl.training.monitor.metrics import number, parse_line

# MindSpeed-RL: "[2025-06-01 10:00:00] iteration: 1 / 1000 | grpo/lr : 1.0e-06 | ..." (utils/loggers.py@62e9928);
# Megatron: " iteration        1/    1000 | lm loss: 1.0E+00 | ..." (training/training.py@core_r0.8.0).
_ITERATION = re.compile(r"(?<![\w/.-])iteration:?\s+([0-9]{1,15})\s*/\s*[0-9]{1,15}\s*\|(.+)", re.DOTALL)


@dataclass(frozen=True)
class StepLines:
    """The lines of a log with the metrics of a step.

    Attributes:
        iterations: Whether they are `iteration: 5 / 100 | KEY : VALUE | ...`, not verl's `step:5 - KEY:VALUE - ...`.
        names: The trainer's name by verl's name, for metrics of another name than verl's.
    """

    iterations: bool = False
    names: Mapping[str, str] = field(default_factory=dict)

    def parse(self, line: str) -> tuple[int, dict[str, float]] | None:
        """Return a line's step and metrics, under both the trainer's names and verl's; None for other lines."""
        found = _parse_iteration(line) if self.iterations else parse_line(line)
        if found is None:
            return None
        step, data = found
        return step, {**{ours: data[own] for ours, own in self.names.items() if own in data}, **data}

    def in_trainers_words(self, alarm: Alarm) -> Alarm:
        """Return an alarm with metrics named as in the trainer's log."""
        for ours, own in self.names.items():
            alarm = replace(
                alarm,
                message=alarm.message.replace(ours, own),
                cause=alarm.cause.replace(ours, own),
                place=alarm.place.replace(ours, own),
            )
        return alarm


def _parse_iteration(line: str) -> tuple[int, dict[str, float]] | None:
    if "iteration" not in line:
        return None
    found = _ITERATION.search(speaker_and_message(line)[1])
    if found is None:
        return None
    data: dict[str, float] = {}
    for item in found[2].split("|"):
        key, colon, text = item.rpartition(":")
        value = number(text) if colon and key.strip() else None
        if value is not None:
            data[key.strip()] = value
    return (int(found[1]), data) if data else None
