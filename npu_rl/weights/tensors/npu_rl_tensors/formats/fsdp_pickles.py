"""Stand-ins for the classes and functions in pickled FSDP sharded state dicts of torch 2.1 to 2.13.

Nothing of torch.distributed is imported or called for a file: the stand-ins keep what they are given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..untrusted_values import is_shape
from .restricted_pickle import Globals, Inert, Pickled, stand_in
from .torch_files import rebuild_tensor


@dataclass(frozen=True)
class ShardedValue:
    """One rank's part of a tensor, as described in its file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    state: Any


class Mesh(Pickled):
    """A DeviceMesh."""


class ShardPlacement(Pickled):
    """The placement Shard(dim)."""


class ReplicatePlacement(Pickled):
    """The placement Replicate()."""


class LocalShard(Pickled):
    """A shard of a ShardedTensor."""


class ShardMetadata(Pickled):
    """The offset and size of a shard in a ShardedTensor."""


class _OtherPlacement(Pickled):
    """An unsupported placement."""


def fsdp_globals() -> Globals:
    """Return the stand-ins, including those for any file of torch.save."""
    known: dict[tuple[str, str], Any] = {
        ("torch", "Tensor"): _Plain,
        ("torch._tensor", "_rebuild_from_type_v2"): _typed,
        ("torch._utils", "_rebuild_wrapper_subclass"): _wrapper,
        ("torch.distributed.device_mesh", "DeviceMesh"): Mesh,
        ("torch.distributed._tensor.device_mesh", "DeviceMesh"): Mesh,
        ("__builtin__", "getattr"): _nested_class,
        ("builtins", "getattr"): _nested_class,
    }
    for module in ("torch.distributed.tensor", "torch.distributed._tensor", "torch.distributed._tensor.api"):
        known[module, "DTensor"] = _Plain
        at = f"{module}.placement_types"
        known |= {(at, "Shard"): ShardPlacement, (at, "Replicate"): ReplicatePlacement}
        known |= {(at, name): _OtherPlacement for name in ("Partial", "_Partial", "_StridedShard")}
        for spec in (at, f"{module}._dtensor_spec"):
            known |= {(spec, name): Pickled for name in ("DTensorSpec", "TensorMeta", "ShardOrderEntry")}
    known |= {
        ("torch.distributed._mesh_layout", name): Pickled
        for name in ("_MeshLayout", "_FlatLayout", "_Layout")
    }
    at = "torch.distributed._shard"
    return known | {
        (f"{at}.metadata", "ShardMetadata"): ShardMetadata,
        (f"{at}.sharded_tensor.api", "ShardedTensor"): _Plain,
        (f"{at}.sharded_tensor.shard", "Shard"): LocalShard,
        (f"{at}.sharded_tensor.metadata", "ShardedTensorMetadata"): Pickled,
        (f"{at}.sharded_tensor.metadata", "TensorProperties"): Pickled,
        (f"{at}.sharded_tensor.metadata", "MEM_FORMAT_ENCODING"): Inert,
        (f"{at}.sharding_spec.api", "EnumerableShardingSpec"): Pickled,
        (f"{at}.sharding_spec.chunk_sharding_spec", "ChunkShardingSpec"): Pickled,
        ("torch.distributed.remote_device", "_remote_device"): Pickled,
    }


class _Plain(Inert):
    """Stand-in for a tensor class; only its name is needed."""


def _nested_class(*_arguments: Any) -> type[Inert]:
    """Stand in for getattr, which pickle protocol 2 uses for nested classes (ShardedTensor.ProcessGroupState)."""
    return Inert


def _wrapper(_class: Any, dtype: Any, shape: Any, *_more: Any) -> ShardedValue:
    if not isinstance(dtype, torch.dtype) or not is_shape(shape):
        raise ValueError("a tensor of many ranks without a dtype or a shape")
    return ShardedValue(dtype, tuple(shape), None)


def _typed(function: Any, _class: Any, arguments: Any, state: Any) -> Any:
    """Stand in for torch's function that rebuilds a tensor and sets its attributes."""
    if function is stand_in(_wrapper):
        made = _wrapper(*arguments)
        return ShardedValue(made.dtype, made.shape, attributes(state) or state)
    if function is stand_in(rebuild_tensor):
        return rebuild_tensor(*arguments)
    raise ValueError("a tensor that is rebuilt by another function")


def attributes(state: Any) -> dict[str, Any] | None:
    """Return the attributes in an object's state, which is a dict or a pair (dict or None, slots dict)."""
    if isinstance(state, dict):
        return state
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
        return {**(state[0] if isinstance(state[0], dict) else {}), **state[1]}
    return None
