"""Boxes: rectangular parts of a tensor. Doesn't need torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

Box = tuple[tuple[int, int], ...]
"""(start, stop) on each axis."""


def whole(shape: Sequence[int]) -> Box:
    """Return the box that covers a whole tensor."""
    return tuple((0, size) for size in shape)


def extent(box: Box) -> tuple[int, ...]:
    """Return the shape of a box."""
    return tuple(stop - start for start, stop in box)


def origin(box: Box) -> tuple[int, ...]:
    """Return the start of a box on each axis."""
    return tuple(start for start, _ in box)


def overlap(one: Box, other: Box) -> Box | None:
    """Return the intersection of two boxes, or None if it is empty."""
    shared = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return None if any(start >= stop for start, stop in shared) else shared


def covers(boxes: Sequence[Box], shape: Sequence[int]) -> bool:
    """Return whether every value of a shape is in exactly one box, and no box is empty."""
    if any(len(box) != len(shape) for box in boxes):
        return False
    inside = all(stop <= size for box in boxes for (_, stop), size in zip(box, shape, strict=True))
    held = sum(math.prod(extent(box)) for box in boxes)
    return inside and held == math.prod(shape) and not _any_overlap(boxes)


def _any_overlap(boxes: Sequence[Box]) -> bool:
    if len(boxes) < 2 or not boxes[0]:
        return len(boxes) > 1
    axis = next((n for n in range(len(boxes[0])) if len({box[n][0] for box in boxes}) > 1), None)
    if axis is None:
        return True
    open_: list[Box] = []  # of a sweep over an axis on which they differ
    for box in sorted(boxes, key=lambda box: box[axis]):
        open_ = [one for one in open_ if one[axis][1] > box[axis][0]]
        if any(overlap(one, box) for one in open_):
            return True
        open_.append(box)
    return False


def shifted(box: Box, origin: Sequence[int], sign: int = 1) -> Box:
    """Return a box moved by `origin` (or back, with sign -1)."""
    return tuple((start + sign * by, stop + sign * by) for (start, stop), by in zip(box, origin, strict=True))


def slices(box: Box) -> tuple[slice, ...]:
    """Return the slices that index a box."""
    return tuple(slice(start, stop) for start, stop in box)


def split(shape: Sequence[int], most: int, together: int = 1) -> Iterator[Box]:
    """Yield boxes of at most `most` values (at least one) that cover a shape, in row-major order.

    Where `together` rows can't be divided, a box has a multiple of them, be they more values.
    """
    if math.prod(shape) <= most or not shape:
        yield whole(shape)
        return
    rest = math.prod(shape[1:])
    if rest >= most and together == 1:
        for row in range(shape[0]):
            for box in split(shape[1:], most):
                yield ((row, row + 1), *box)
        return
    rows = max(1, most // rest // together) * together
    for start in range(0, shape[0], rows):
        yield ((start, min(start + rows, shape[0])), *whole(shape[1:]))


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def index_in(box: Box, place: int) -> tuple[int, ...]:
    """Return the index in the whole tensor of the value at a row-major position of a box."""
    index = []
    for start, stop in reversed(box):
        place, inner = divmod(place, stop - start)
        index.append(start + inner)
    return tuple(reversed(index))
