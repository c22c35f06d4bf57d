"""Compare two checkpoints value by value, across formats, names, fusions and dtypes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from .checkpoint_views import CheckpointViews, checkpoint_format, open_checkpoint
from .conversion.units import in_groups
from .formats.boxes import Box, index_in
from .formats.hf_views import hf_views
from .formats.tensor_views import OpenFiles, TensorView
from .hf_checkpoint import CONFIG, EMBEDDINGS, HEAD, HfCheckpoint, read_object
from .not_finite import PIECE, NotFinite, not_finite
from .tensor_error import TensorError

_GROUP = 256 * 1024 * 1024  # bytes of A that are one task
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def plan_audit(arguments: dict[str, Any], _progress: Callable[[int], None]) -> dict[str, Any]:
    """Describe both checkpoints, and divide the tensor names that they share into groups.

    Args:
        arguments: `of`: `a` and `b`, folders; `config`, the folder of a config.json, or None; `experts_over_tensor`.
    """
    a, b = opened(json.dumps(arguments["of"]))
    both = [name for name in a.tensors if name in b.tensors]
    return {
        "a": a.describe(),
        "b": b.describe(),
        "bytes": sum(a.tensors[name].bytes for name in both),
        "groups": in_groups({name: a.tensors[name].bytes for name in both}, _GROUP),
        "only_in_a": [name for name in a.tensors if name not in b.tensors and name not in a.mtp],
        "only_in_b": [name for name in b.tensors if name not in a.tensors and name not in b.mtp],
        "mtp_only_in_a": [name for name in a.tensors if name not in b.tensors and name in a.mtp],
        "mtp_only_in_b": [name for name in b.tensors if name not in a.tensors and name in b.mtp],
        "unknown_in_a": list(a.unknown),
        "unknown_in_b": list(b.unknown),
    }


def audit_group(arguments: dict[str, Any], progress: Callable[[int], None]) -> dict[str, Any]:
    """Compare the tensors of a group. Every copy, on either side, is compared with A's first copy.

    Args:
        arguments: Those of `plan_audit`, and `names`.
        progress: Called with the number of bytes of A that were compared.
    """
    sides = opened(json.dumps(arguments["of"]))
    tensors, values = Counter[str](), Counter[str]()

    def count(state: str, view: TensorView) -> None:
        tensors[state] += 1
        values[state] += view.numel

    differences = []
    odd: list[dict[str, Any]] = []
    for name in arguments["names"]:
        a, b = (side.tensors[name] for side in sides)
        found = compare(a, b, progress)
        state = found.state
        if state == "equal" and (name in sides[0].cast) != (name in sides[1].cast):
            state = "cast"
        count(state, a)
        if found.different:
            differences.append(found.to_json(name, a, b))
        for letter, side, first, of in zip("ab", sides, (a, b), found.not_finite, strict=True):
            pieces = [(first, of)]
            for copy in side.copies.get(name, ()):
                again = compare(first, copy, lambda _count: None)
                count("copies" if again.state == "equal" else "different_copies", copy)
                if again.different:
                    differences.append(again.to_json(name, first, copy))
                pieces.append((copy, again.not_finite[1]))
            odd += [_not_finite_row(letter, name, view, of) for view, of in pieces if of is not None]
    first, last = arguments["names"][0], arguments["names"][-1]
    group = first if first == last else f"{first} to {last}"
    counts = {"tensors": tensors, "values": values}
    return {"group": group, **counts, "differences": differences, "not_finite": odd}


def _not_finite_row(side: str, name: str, view: TensorView, found: NotFinite) -> dict[str, Any]:
    of = {"side": side, "tensor": name, "where": view.where, "index": list(found.index)}
    return {**of, "value": repr(found.value), "values": found.values, "nan": found.nan}


@dataclass(frozen=True)
class TensorDiff:
    """The result of a comparison.

    Attributes:
        state: `equal` (bit for bit, or in value if the dtypes differ), `rounded` (what the narrower dtype can hold of
            the wider's values), `different` or `shape`.
        different: Number of values that differ.
        index: Of the first of them.
        values: Of both sides there.
        not_finite: What is NaN or infinite in A and in B.
    """

    state: str
    different: int = 0
    index: tuple[int, ...] = ()
    values: tuple[float, float] = (0.0, 0.0)
    not_finite: tuple[NotFinite | None, NotFinite | None] = (None, None)

    def to_json(self, name: str, a: TensorView, b: TensorView) -> dict[str, Any]:
        """Return the difference as JSON for a report."""
        sides = {
            side: {
                "where": view.where,
                "shape": list(view.shape),
                "dtype": str(view.dtype).removeprefix("torch."),
            }
            for side, view in (("a", a), ("b", b))
        }
        if self.state != "shape":
            sides["a"]["value"], sides["b"]["value"] = (repr(value) for value in self.values)
        return {"tensor": name, "index": list(self.index), "different": self.different, **sides}


def compare(a: TensorView, b: TensorView, progress: Callable[[int], None]) -> TensorDiff:
    """Compare two tensors piece by piece, so that a worker needs memory for only two pieces and temporaries."""
    if a.shape != b.shape:
        return TensorDiff("shape", max(a.numel, b.numel, 1))
    for view in (a, b):
        if view.dtype.itemsize not in _INTEGERS or view.dtype.is_complex:
            raise TensorError(
                "Unsupported dtype", where=f"{view.where}: {view.name}", why=f"It is {view.dtype}."
            )
    state, different, values = "equal", 0, (0.0, 0.0)
    first: tuple[int, ...] = ()
    odd: list[NotFinite | None] = [None, None]
    for box in a.pieces(PIECE):
        one, other = a.read(box), b.read(box)
        unequal = _unequal(one, other)
        odd_one = not_finite(one, box)
        same = unequal is None and one.dtype == other.dtype  # bit for bit
        for side, piece in enumerate((odd_one, odd_one if same else not_finite(other, box))):
            if piece is not None:
                held = odd[side]
                odd[side] = piece if held is None else held.and_later(piece)
        if unequal is not None and _are_floats(one, other) and one.dtype != other.dtype:
            unequal = _unequal_rounded(one, other)
            if unequal is None and state == "equal":
                state = "rounded"
        if unequal is not None:
            if not different:
                first, values = _first(unequal, box, one, other)
            state, different = "different", different + int(unequal.sum())
        progress(one.numel() * one.element_size())
    return TensorDiff(state, different, first, values, (odd[0], odd[1]))


def _unequal(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
    """Return a mask of the values that differ in any bit; None if all are equal.

    Two float dtypes are compared in the wider one.

    Whole numbers and floats differ everywhere: 2**24 + 1 is no float32, and becomes 2**24.
    """
    if a.dtype != b.dtype:
        if not _are_floats(a, b):
            return torch.ones(a.shape, dtype=torch.bool) if a.numel() else None
        wider = torch.promote_types(a.dtype, b.dtype)
        a, b = a.to(wider), b.to(wider)
    integer = _INTEGERS[a.element_size()]
    one, other = a.contiguous().view(integer), b.contiguous().view(integer)
    return None if torch.equal(one, other) else one != other


def _are_floats(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype in _FLOATS and b.dtype in _FLOATS


def _unequal_rounded(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
    """Return a mask of the values that differ, or overflow, after rounding to the narrower dtype.

    Neither bfloat16 nor float16 is narrower; B's dtype is used then, since B was made from A.
    """
    wide, narrow = (a, b) if a.element_size() >= b.element_size() else (b, a)
    rounded = wide.to(narrow.dtype)
    overflowed = rounded.isinf() & wide.isfinite()
    unequal = _unequal(rounded, narrow)
    if bool(overflowed.any()):
        return overflowed if unequal is None else unequal | overflowed
    return unequal


def _first(
    unequal: torch.Tensor, box: Box, a: torch.Tensor, b: torch.Tensor
) -> tuple[tuple[int, ...], tuple[float, float]]:
    place = int(unequal.reshape(-1).to(torch.uint8).argmax())
    return index_in(box, place), (float(a.reshape(-1)[place]), float(b.reshape(-1)[place]))


@lru_cache(maxsize=1)
def opened(of: str) -> tuple[CheckpointViews, CheckpointViews]:
    """Open both checkpoints. A worker caches the last pair."""
    asked = json.loads(of)
    folders = [Path(asked["a"]), Path(asked["b"])]
    model = next((one for one in folders if checkpoint_format(one) == "hf"), None)
    model = Path(asked["config"]) if asked["config"] else model
    content = None if model is None else read_object(model / CONFIG)
    where = "" if model is None else str(model / CONFIG)
    files = OpenFiles()
    one, other = (
        open_checkpoint(folder, content, where, asked["experts_over_tensor"], files) for folder in folders
    )
    if content is not None and content.get("tie_word_embeddings"):
        _add_tied_head(one, other)
        _add_tied_head(other, one)
    return one, other


def _add_tied_head(side: CheckpointViews, other: CheckpointViews) -> None:
    """Add the tied output head to a side that stores only the embeddings, if the other side stores the head."""
    if HEAD in other.tensors and HEAD not in side.tensors and EMBEDDINGS in side.tensors:
        side.tensors[HEAD] = side.tensors[EMBEDDINGS]


def tied_head(arguments: dict[str, Any], progress: Callable[[int], None]) -> dict[str, Any]:
    """Compare the head with the embeddings. Arguments: `folder`, a Hugging Face checkpoint."""
    views = hf_views(HfCheckpoint(Path(arguments["folder"])), OpenFiles()).tensors
    return {"difference": head_difference(views, progress)}


def head_difference(tensors: Mapping[str, TensorView], progress: Callable[[int], None]) -> str:
    """Return how the stored head differs from the embeddings; empty if they are equal or one is not stored."""
    if HEAD not in tensors or EMBEDDINGS not in tensors:
        return ""
    head, embeddings = tensors[HEAD], tensors[EMBEDDINGS]
    found = compare(head, embeddings, progress)
    if not found.different:
        return ""
    if found.state == "shape":
        return f"{HEAD} is {list(head.shape)}, and {EMBEDDINGS} is {list(embeddings.shape)}"
    index, (one, other) = ", ".join(map(str, found.index)), found.values
    return (
        f"{found.different:,} of {head.numel:,} values of {HEAD} differ from {EMBEDDINGS}: "
        f"at [{index}] {one!r} and {other!r}"
    )
