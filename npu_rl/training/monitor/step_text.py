"""Formatting of a step's metrics to fit a line, and of times as on a clock."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from npu_rl.training.monitor.metrics import phase_seconds, reward, seconds, throughput

WIDTH = 80  # columns of a line for a log or a pipe
_SHORT = {"old_log_prob": "old", "update_actor": "upd"}  # short names of phases
_SHORTEST_PHASE = 0.005  # seconds


@dataclass(frozen=True)
class StepText:
    """A step's metrics as text, "" for missing ones. `split` has seconds and text of each phase."""

    step: str
    reward: str
    length: str
    seconds: str
    split: tuple[tuple[float, str], ...]
    die: str
    card: str
    eta: str

    def shown_split(self, width: int) -> str:
        """Return the longest phases that fit, in their order."""
        kept = list(self.split)
        while kept and len(" ".join(text for _, text in kept)) > width:
            kept.remove(min(kept))
        return " ".join(text for _, text in kept)


def step_text(
    step: int, total: int | None, data: Mapping[str, float], eta: float | None, dies_per_card: int
) -> StepText:
    """Return the metrics of a step as text."""
    mean, length, took = reward(data), data.get("response_length/mean"), seconds(data)
    rate = throughput(data, dies_per_card)
    return StepText(
        step=f"{step}/{total}" if total else str(step),
        reward="" if mean is None else f"{mean:.3f}",
        length="" if length is None else f"{length:.1f}",
        seconds="" if took is None else _duration(took),
        split=tuple(
            (value, f"{_SHORT.get(phase, phase)} {_brief(value)}")
            for phase, value in phase_seconds(data).items()
            if value >= _SHORTEST_PHASE
        ),
        die="" if rate is None else f"{rate[0]:.0f}",
        card="" if rate is None or dies_per_card == 1 else f"{rate[1]:.0f}",
        eta="" if eta is None or not math.isfinite(eta) else clock(eta),
    )


def step_line(
    step: int,
    total: int | None,
    data: Mapping[str, float],
    eta: float | None,
    dies_per_card: int = 1,
    width: int = WIDTH,
) -> str:
    """Return a step as one line: `step 12/60 reward 0.123 len 15.8 0.61 s (gen .30 ...) 432 tok/s/die ETA 0:32`.

    Missing metrics are left out; so is what does not fit: first tokens per card, then the shortest phases, then tokens
    per die.
    """
    cells = step_text(step, total, data, eta, dies_per_card)
    phases = [text for _, text in sorted(cells.split, reverse=True)]
    # a line with fewer and fewer of them, until it fits
    for card, count, die in [
        (cells.card, len(phases), cells.die),
        *(("", count, cells.die) for count in range(len(phases), 0, -1)),
        *(("", count, "") for count in range(len(phases), -1, -1)),
    ]:
        kept = tuple(phase for phase in cells.split if phase[1] in phases[:count])
        line = _line(replace(cells, card=card, die=die, split=kept))
        if len(line) <= width:
            break
    return line


def _line(cells: StepText) -> str:
    words = [f"step {cells.step}"]
    split = " ".join(text for _, text in cells.split)
    for form, text in (
        ("reward {}", cells.reward), ("len {}", cells.length), ("{} s", cells.seconds), ("({})", split),
        ("{} tok/s/die", cells.die), ("{} tok/s/card", cells.card), ("ETA {}", cells.eta),
    ):  # fmt: skip
        if text:
            words.append(form.format(text))
    return " ".join(words)


def _duration(took: float) -> str:
    return f"{took:.2f}" if took < 10 else f"{took:.1f}" if took < 100 else f"{took:.0f}"


def _brief(took: float) -> str:
    """Format seconds in three or four characters: .30, 4.2, 137."""
    if took < 0.995:
        return f"{took:.2f}".removeprefix("0")
    return f"{took:.1f}" if took < 100 else f"{took:.0f}"


def clock(eta: float) -> str:
    """Format seconds as 0:32, 12:05 or 3:07:00."""
    whole = max(round(eta), 0)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
