"""The checkpoint's folder: written beside its place, by Megatron-core, and put in its place when it is whole."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import ConversionError
from .pieces import Piece, State


def staging(output: Path) -> Path:
    """Where a checkpoint is written at first: beside `output`, so that it can be renamed."""
    return output.with_name(f".{output.name}.incomplete")


def refuse_occupied(output: Path) -> None:
    """Raises ConversionError if something lies where the checkpoint shall be."""
    if output.is_symlink() or (output.exists() and not (output.is_dir() and not any(output.iterdir()))):
        raise ConversionError(f"{output} is there and not an empty folder: name another, or remove it first")


@contextlib.contextmanager
def staged(output: Path) -> Iterator[Path]:
    """An empty folder beside `output` that nobody else converts into. For one process alone.

    What a conversion that was killed left there is removed. Raises ConversionError where the folder can't be made, or
    another conversion is writing to it.
    """
    folder = staging(output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise ConversionError(f"{folder} can't be made: {error}") from error
    try:
        _lock(handle, folder)
        _empty(folder)
        yield folder
    finally:
        os.close(handle)


def put_in_place(output: Path) -> None:
    """Rename the whole checkpoint to `output`. Its files are flushed by who wrote them; here the folders are."""
    folder = staging(output)
    try:
        _flush(folder)
        folder.rename(output)  # onto an empty folder, too; never onto another
        _flush(output.parent)
    except OSError as error:
        raise ConversionError(
            f"the checkpoint is whole, but {folder} can't be renamed to {output}: {error}; rename it by hand"
        ) from error


def discard(output: Path) -> None:
    """Remove what is not whole."""
    shutil.rmtree(staging(output), ignore_errors=True)


def sharded(piece: Piece, tensor: Any) -> Any:
    """The ShardedTensor of a piece, with its data (or, on the device "meta", without)."""
    from megatron.core.dist_checkpointing import ShardedTensor

    return ShardedTensor.from_rank_offsets(
        piece.key, tensor, *piece.fragments, prepend_axis_num=piece.prepended
    )


def save(tensors: dict[str, Any], states: list[State], folder: Path, *, first: bool) -> None:
    """Write what the ranks have together, flushed to disk; metadata.json, which makes it a checkpoint, comes last.

    tensors: ShardedTensors by any name. first: whether this is rank 0. Called by every rank. Raises ConversionError
    on every rank if one can't write its tensors, and on rank 0 if it can't write the rest.

    These are the steps of `dist_checkpointing.save` for the format "torch_dist"@core_v0.12.1, but torch writes the
    files: Megatron-core does it in forked processes, by a function of torch's that has since got an argument more,
    and where one rank can't write, the others wait for it indefinitely. torch raises on all of them.
    """
    from megatron.core.dist_checkpointing import serialization
    from megatron.core.dist_checkpointing.core import CheckpointingConfig, CheckpointingException, save_config
    from megatron.core.dist_checkpointing.mapping import ShardedObject
    from megatron.core.dist_checkpointing.state_dict_utils import save_preprocess
    from megatron.core.dist_checkpointing.strategies import torch as torch_dist
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.api import CheckpointException

    content = dict(tensors)
    for state in states:
        content[f"{state.key}/{state.number}"] = ShardedObject(state.key, None, (state.of,), (state.number,))
    try:
        sharded, common = save_preprocess(
            content
        )  # among other things: is every part of every tensor there, once?
        by_key, _, _ = torch_dist._replace_state_dict_keys_with_sharded_keys(sharded, True)
        planner = torch_dist.MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False)
        # No copying ahead: that is for tensors on an accelerator, these are on the host.
        writer = checkpoint.FileSystemWriter(folder, sync_files=True, per_thread_copy_ahead=0)
        checkpoint.save(torch_dist.mcore_to_pyt_state_dict(by_key), storage_writer=writer, planner=planner)
        if first:  # after the last step that ranks take together
            serialization.get_default_save_common_strategy().save_common(common, folder)
            save_config(CheckpointingConfig("torch_dist", 1), str(folder))
    except (CheckpointException, CheckpointingException, OSError, RuntimeError) as error:
        raise ConversionError(f"writing to {folder} failed: {_short(error)}") from error


def _short(error: BaseException) -> str:
    """What went wrong, by rank, of torch's exception for all of them, whose text has every stack."""
    failures = getattr(error, "failures", None)
    if not failures:
        return f"{type(error).__name__}: {error}"
    return "; ".join(
        f"rank {rank}: {type(what[0]).__name__}: {what[0]}" for rank, what in sorted(failures.items())
    )


def load(tensors: dict[str, Any], folder: Path) -> None:
    """Fill ShardedTensors of this rank from a checkpoint. Called by every rank."""
    from megatron.core import dist_checkpointing

    dist_checkpointing.load(tensors, str(folder), validate_access_integrity=False)


def _lock(handle: int, folder: Path) -> None:
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise ConversionError(
                f"another conversion is writing to {folder}: wait for it, or end it"
            ) from error
        # A file system without locks: the names alone have to do.


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _flush(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
