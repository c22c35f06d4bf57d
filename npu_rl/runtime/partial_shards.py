"""Adaptation partial-shards: mbridge saves a shard some of whose published tensors the run does not have.

mbridge writes a shard once every tensor has come that the published index has in it
(mbridge/core/safetensor_io.py:111@0cd4ae23); with `memory_efficient` it opens a temporary file for each of them, which
ends with FileNotFoundError (:143). A run lacks the FP8 scales of published FP8 weights, and an MTP layer that is
switched off. Upstream has mbridge 3d66b96397 and, for `memory_efficient`, the argument `strict` (d10f3c6).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .switches import enabled
from .used import count

SLUG = "partial-shards"


def save_rest(states: dict[str, Any], shards: Mapping[str, set[str]], written: set[str], folder: str) -> None:
    """Save the tensors in `states` of each shard that is not in `written`, and remove them from `states`.

    A tensor that came twice does not replace a whole shard.

    Args:
        states: Tensors that have come and are in no file yet, by name.
        shards: Tensor names of each file in the published index.
    """
    if not enabled(SLUG):
        return
    from safetensors.torch import save_file

    for shard, names in shards.items():
        left = sorted(names & states.keys())
        if left and shard not in written:
            count(SLUG)
            save_file({name: states.pop(name) for name in left}, Path(folder, shard))


def published(
    tensors: Iterable[tuple[str, Any]], index: Mapping[str, str], came: set[str]
) -> Iterator[tuple[str, Any]]:
    """Yield those of `tensors` that are in the published index, and add their names to `came`.

    Others, which would stay in temporary files, end with the warning of `save_hf_weight`.
    """
    unknown = []
    for name, tensor in tensors:
        if name in index or not enabled(SLUG):
            came.add(name)
            yield name, tensor
        else:
            unknown.append(name)
    if unknown:
        warnings.warn(f"Some weights are not saved: {unknown}", stacklevel=2)


def shards_of(came: set[str], shards: Mapping[str, set[str]]) -> Mapping[str, set[str]]:
    """Return the names of each shard that have come, without shards of which none has."""
    found = {shard: names & came for shard, names in shards.items() if names & came}
    if found == shards or not enabled(SLUG):
        return shards
    count(SLUG)
    return found
