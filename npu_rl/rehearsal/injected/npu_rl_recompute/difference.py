"""Differences between a quantity of the trainer and its recomputation: recorded, and raised to end the run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import torch  # it is imported when something is compared: this runs at the start of every process


@dataclass(frozen=True)
class Difference:
    """A difference.

    Attributes:
        quantity: Name of the quantity, as of `counts.compared`.
        got: The trainer's value.
        want: The recomputed value.
        tolerance: Greatest difference that rounding explains, of this value; None where values have to be equal.
        mistake: The known mistake of this form, or "".
        row: Index in the batch, or None if the quantity has no rows.
        token: Index in the row's response, or None if the quantity has one value a row.
        step: The trainer's step, or None where it isn't known.
    """

    quantity: str
    got: Any
    want: Any
    tolerance: float | None = None
    mistake: str = ""
    row: int | None = None
    token: int | None = None
    step: int | None = None

    def text(self) -> str:
        """Return the difference as one line of text."""
        places = {"step": self.step, "row": self.row, "token": self.token}
        where = ", ".join(f"{name} {value}" for name, value in places.items() if value is not None)
        limit = "" if self.tolerance is None else f" (tolerance {self.tolerance:.2g})"
        form = f": {self.mistake}" if self.mistake else ""
        return (
            f"{self.quantity}{f', {where}' if where else ''}: {self.got}, recomputed {self.want}{limit}{form}"
        )


class RecomputedDifferenceError(RuntimeError):
    """The trainer computes something else than the formulas say."""


def report(difference: Difference) -> NoReturn:
    """Record the difference, and raise RecomputedDifferenceError."""
    if folder := os.environ.get("NPU_RL_USAGE"):
        file = Path(folder) / f"recomputed-{os.uname().nodename}-{os.getpid()}.jsonl"
        with file.open("a") as lines:
            lines.write(json.dumps({**asdict(difference), "text": difference.text()}, default=str) + "\n")
    raise RecomputedDifferenceError(difference.text())


def require_equal(
    quantity: str,
    got: torch.Tensor,
    want: torch.Tensor,
    tolerance: torch.Tensor | float,
    mistakes: Callable[[], Mapping[str, torch.Tensor]],
    step: int | None = None,
) -> None:
    """Report the first value that differs by more than the tolerance, with the known mistakes that have this form.

    Args:
        got: The trainer's values, (rows) or (rows, tokens).
        want: The recomputed ones.
        tolerance: Greatest difference, of all values or of each.
        mistakes: Returns by name what each known mistake would have made of the values. A name is reported if all
            values are within the tolerance of its own.
    """
    import torch

    got, want = got.detach().double(), want.double()
    limits = torch.as_tensor(tolerance, dtype=torch.float64).expand(want.shape)
    wrong = ~((got - want).abs() <= limits)  # a NaN is wrong, too
    if not bool(wrong.any()):
        return
    known = [
        name for name, values in mistakes().items() if bool(((got - values.double()).abs() <= limits).all())
    ]
    place = tuple(wrong.nonzero()[0].tolist())
    row, token = (*place, None, None)[:2]
    values = float(got[place]), float(want[place]), float(limits[place])
    report(Difference(quantity, *values, " or ".join(known), row, token, step))
