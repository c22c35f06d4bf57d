"""NaN and infinity in a tensor: the number of such values and the position of the first."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from .formats.boxes import Box, index_in
from .formats.tensor_views import TensorView
from .tensor_error import TensorError

PIECE = 4 * 1024 * 1024
"""Values that are looked at at once."""


@dataclass(frozen=True)
class NotFinite:
    """The values of a tensor that are NaN or infinite.

    Attributes:
        values: Their number.
        nan: How many of them are NaN.
        index: Position of the first.
        value: The first.
    """

    values: int
    nan: int
    index: tuple[int, ...]
    value: float

    def and_later(self, more: NotFinite | None) -> NotFinite:
        """Add the counts of a later piece."""
        if more is None:
            return self
        return replace(self, values=self.values + more.values, nan=self.nan + more.nan)


def all_finite(values: torch.Tensor) -> bool:
    """Return whether no value is NaN or infinite.

    Checking the minimum and maximum is enough, since `aminmax` propagates NaN; it is 20 times as fast as `isfinite` in
    bfloat16 (10.5 and 0.46 GB/s on one core, torch 2.13).
    """
    if not values.numel() or not values.dtype.is_floating_point:
        return True
    least, most = torch.aminmax(_comparable(values))
    return math.isfinite(float(least)) and math.isfinite(float(most))


def not_finite(values: torch.Tensor, box: Box) -> NotFinite | None:
    """Return the NaN and infinite values of a box, or None."""
    if all_finite(values):
        return None
    flat = _comparable(values).reshape(-1)
    found = ~torch.isfinite(flat)
    place = int(found.to(torch.uint8).argmax())
    return NotFinite(int(found.sum()), int(torch.isnan(flat).sum()), index_in(box, place), float(flat[place]))


def require_finite(view: TensorView, written: torch.Tensor) -> None:
    """Raise TensorError, with the count in the whole tensor, if a value would be written as NaN or infinity.

    Args:
        view: The tensor, read again only if there are such values.
        written: Some of its values, in the dtype in which they are to be written.
    """
    if all_finite(written):
        return
    found: NotFinite | None = None
    original = 0.0
    for box in view.pieces(PIECE):
        values = view.read(box)
        piece = not_finite(values.to(written.dtype), box)
        if piece is not None and found is None:
            found = piece
            at = tuple(place - start for place, (start, _) in zip(piece.index, box, strict=True))
            original = float(values[at])
        elif piece is not None and found is not None:
            found = found.and_later(piece)
    if found is None:
        raise TensorError("A file changed while it was read", where=f"{view.where}: {view.name}")
    index = ", ".join(map(str, found.index))
    dtype = str(written.dtype).removeprefix("torch.")
    count = f"{found.values:,} of its {view.numel:,} values are NaN or infinite"
    if math.isfinite(original):
        count = f"{found.values:,} of its {view.numel:,} values are beyond {dtype} or not finite"
    raise TensorError(
        "A weight is not a finite number",
        where=f"{view.where}: {view.name}[{index}]",
        why=f"{count} ({found.nan:,} NaN); this is the first, {original!r}.",
        hint="The file is damaged, or its training has failed. Compare its hash with the source's.",
    )


def _comparable(values: torch.Tensor) -> torch.Tensor:
    """Return values in a dtype that torch can compare, which FP8 is not."""
    return values.to(torch.float32) if values.dtype.itemsize == 1 else values
