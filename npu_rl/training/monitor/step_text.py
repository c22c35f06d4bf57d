"""Formatting of a step's metrics as a line, and of times as on a clock."""

from __future__ import annotations

import math
from collections.abc import Mapping

from npu_rl.training.monitor.metrics import phase_seconds, reward, seconds, throughput

_SHORT = {"old_log_prob": "old", "update_actor": "upd"}  # short names of phases
_LEAST_SHARE = 0.1  # of a step's seconds, from which a phase is shown


def step_text(step: int, total: int | None, data: Mapping[str, float]) -> dict[str, str]:
    """Return the metrics of a step as text, by the heads of a table; missing ones are ""."""
    mean, length, took = reward(data), data.get("response_length/mean"), seconds(data)
    phases, rate = phase_seconds(data), throughput(data)
    least = _LEAST_SHARE * (sum(phases.values()) if took is None else took)
    return {
        "step": f"{step}/{total}" if total else str(step),
        "reward": "" if mean is None else f"{mean:.3f}",
        "len": "" if length is None else f"{length:.1f}",
        "s": "" if took is None else _figures(took),
        "split": " ".join(
            f"{_SHORT.get(phase, phase)} {_figures(value)}"
            for phase, value in phases.items()
            if value >= least
        ),
        "tok/s/die": "" if rate is None else f"{rate[0]:.0f}",
    }


def step_line(step: int, total: int | None, data: Mapping[str, float], eta: float | None) -> str:
    """Return a step as one line: `step 12/60 reward 0.123 len 15.8 0.61 s (gen 0.30 ...) 432 tok/s/die ETA 0:32`.

    Missing metrics are left out, and phases of less than a tenth of the step.
    """
    cells = step_text(step, total, data)
    forms = ("step {}", "reward {}", "len {}", "{} s", "({})", "{} tok/s/die")
    words = [form.format(text) for form, text in zip(forms, cells.values(), strict=True) if text]
    return " ".join(words if eta is None or not math.isfinite(eta) else [*words, f"ETA {clock(eta)}"])


def _figures(took: float) -> str:
    """Format seconds with three figures: 0.30, 4.20, 13.4, 137."""
    return f"{took:.2f}" if took < 10 else f"{took:.1f}" if took < 100 else f"{took:.0f}"


def clock(eta: float) -> str:
    """Format seconds as 0:32, 12:05 or 3:07:00."""
    whole = max(round(eta), 0)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
