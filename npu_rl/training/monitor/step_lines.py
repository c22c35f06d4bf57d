"""The lines of a trainer's log that have the metrics of a step.

verl prints "step:5 - critic/score/mean:0.0086 - ..." (verl/utils/logger/aggregate_logger.py@0.5.0: full
precision; in releases before August 2025 three decimals).
MindSpeed-RL: "[2025-06-01 10:00:00] iteration: 1 / 1000 | grpo/lr : 1.0e-06 | ..." (utils/loggers.py@62e9928);
Megatron: " iteration        1/    1000 | lm loss: 1.0E+00 | ..." (training/training.py@core_r0.8.0).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from npu_rl.training.monitor.alarm import Alarm
from npu_rl.training.monitor.log_lines import speaker_and_message

_STEP = re.compile(r"(?<![\w/.:-])step:([0-9]{1,15}) - (.+)", re.DOTALL)
_ITERATION = re.compile(r"(?<![\w/.-])iteration:?\s+([0-9]{1,15})\s*/\s*[0-9]{1,15}\s*\|(.+)", re.DOTALL)
_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|nan|inf(?:inity)?)"
# A number may be in numpy's notation, such as np.float64(0.1).
_VALUE = re.compile(rf"(?:(?:np|numpy|torch)?\.?[A-Za-z]\w*\()?({_NUMBER}|True|False)(?:, dtype=[\w.]+)?\)?")
_TRUTH = {"True": 1.0, "False": 0.0}


@dataclass(frozen=True)
class StepLines:
    """The form of the lines, and the names in them.

    Attributes:
        iterations: Whether they are `iteration: 5 / 100 | KEY : VALUE | ...`, not verl's `step:5 - KEY:VALUE - ...`.
        names: The trainer's name by verl's name, for metrics of another name than verl's.
    """

    iterations: bool = False
    names: Mapping[str, str] = field(default_factory=dict)

    def parse(self, line: str) -> tuple[int, dict[str, float]] | None:
        """Return a line's step and metrics, under both the trainer's names and verl's; None for other lines.

        Values that are not numbers are skipped.
        """
        word, form, between = ("iteration", _ITERATION, "|") if self.iterations else ("step:", _STEP, " - ")
        if word not in line or (found := form.search(speaker_and_message(line)[1])) is None:
            return None
        data: dict[str, float] = {}
        for item in found[2].strip().split(between):
            key, _, text = item.rpartition(":")
            value = _VALUE.fullmatch(text.strip())
            if key.strip() and value is not None:
                data[key.strip()] = _TRUTH[value[1]] if value[1] in _TRUTH else float(value[1])
        named = {ours: data[own] for ours, own in self.names.items() if own in data}
        return (int(found[1]), {**named, **data}) if data else None

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
