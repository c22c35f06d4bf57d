"""The complete steps among a run's checkpoints, from verl's file list for each strategy; no tensors are read.

`data.pt` of a step is written after all ranks have saved (verl/trainer/ppo/ray_trainer.py:974@v0.5.0), so a step that
a crash cut off lacks it. The ranks' files are looked at as well: a lost host, a disk or a person may have taken some.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, Literal, cast

from npu_rl.common.bounded import LARGEST, open_file, read_file, read_json
from npu_rl.weights.tensors.npu_rl_tensors.formats.inert_pickle import read_pickle
from npu_rl.weights.tensors.npu_rl_tensors.tensor_error import TensorError
from npu_rl.weights.tensors.npu_rl_tensors.untrusted_values import is_file_name

DATA = "data.pt"
UNWHOLE_DATA = (
    f"{DATA}.incomplete"  # of a step that a save did not finish, once the run was resumed before it
)
_LARGEST = 1 << 30  # bytes, of a .metadata
_STEP = re.compile(r"global_step_(0|[1-9][0-9]{0,8})")
_OTHER_WORLD = re.compile(r"model_world_size_(\d+)_rank_\d+\.pt")


@dataclass(frozen=True)
class RoleFiles:
    """The files of one model of a step.

    Attributes:
        role: The folder of the step: actor or critic.
        kind: fsdp and legacy are files of each rank, torch_dist is one folder of Megatron-core; legacy is Megatron's at
            verl 54c9b73.
        contents: model, optimizer and extra, as far as they are loaded.
        sizes: Tensor, pipeline, context and expert parallel sizes, of legacy.
    """

    role: str
    kind: Literal["fsdp", "torch_dist", "legacy"]
    contents: tuple[str, ...] = ("model", "optimizer", "extra")
    sizes: tuple[int, int, int, int] = (1, 1, 1, 1)


@dataclass(frozen=True)
class SavedLayout:
    """The layout of a run's checkpoints.

    Attributes:
        world: Ranks of all nodes.
        dies: Ranks of a node.
    """

    roles: tuple[RoleFiles, ...]
    world: int
    dies: int


def saved_steps(checkpoints: Path, layout: SavedLayout) -> dict[int, str]:
    """Return, by step in ascending order, why the step is incomplete; empty for complete steps."""
    folders = {int(match[1]): path for path in _folders(checkpoints) if (match := _STEP.fullmatch(path.name))}
    return {step: fault_of(folders[step], layout) for step in sorted(folders)}


def fault_of(step: Path, layout: SavedLayout) -> str:
    """Return why this node's files can't be resumed from at a step; empty if they can.

    Without a shared disk each node has the files of its own ranks: if all that are here are those of one node, that
    node's are enough.
    """
    for role in layout.roles:
        folder = step / role.role
        if not folder.is_dir():
            return f"{role.role}/ is missing"
        found = (
            _dist_fault(folder / "dist_ckpt")
            if role.kind == "torch_dist"
            else _ranks_fault(folder, role, layout)
        )
        if found:
            return f"{role.role}/{found}"
    return _zip_fault(step, DATA)


def _folders(checkpoints: Path) -> list[Path]:
    try:
        return [path for path in checkpoints.iterdir() if path.is_dir()]
    except OSError:
        return []


def _ranks_fault(folder: Path, role: RoleFiles, layout: SavedLayout) -> str:
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    names = _fsdp_names if role.kind == "fsdp" else _legacy_names
    expected = {rank: tuple(names(role, rank, layout.world, there)) for rank in range(layout.world)}
    nodes = {rank // layout.dies for rank, files in expected.items() if there.intersection(files)}
    for rank, files in expected.items():
        if len(nodes) == 1 and rank // layout.dies not in nodes:
            continue
        for name in files:
            if fault := _zip_fault(folder, name):
                return fault + _other_world(there, layout.world)
    return ""


def _fsdp_names(role: RoleFiles, rank: int, world: int, _there: Collection[str]) -> Iterator[str]:
    """Yield a rank's files (verl/utils/checkpoint/fsdp_checkpoint_manager.py:229@v0.5.0, the same at all four pins)."""
    for content, name in (("model", "model"), ("optimizer", "optim"), ("extra", "extra_state")):
        if content in role.contents:
            yield f"{name}_world_size_{world}_rank_{rank}.pt"


def _legacy_names(role: RoleFiles, rank: int, world: int, there: Collection[str]) -> Iterator[str]:
    """Yield a rank's files (verl/utils/megatron_utils.py:427 and megatron_checkpoint_manager.py:125@54c9b73).

    Ranks count tensor, context, data and pipeline parallel, experts within data (RankGenerator, megatron/core/
    parallel_state.py@core_r0.8.0). Of the optimizers' files those of the first data-parallel ranks are certain; which
    others save depends on the experts' groups, so another is only judged if it is there. `.steps` is of the patch
    optimizer-resume.
    """
    tensor, pipeline, context, expert = role.sizes
    data = max(1, world // (tensor * pipeline * context))
    tp, cp = rank % tensor, rank // tensor % context
    dp, pp = rank // (tensor * context) % data, rank // (tensor * context * data)
    if "model" in role.contents:
        stage, experts = (f"_{pp:03d}" if pipeline > 1 else ""), (f"_{dp % expert:03d}" if expert > 1 else "")
        yield f"model/mp_rank_{tp:02d}{stage}{experts}/model.pt"
    place = f"pp{pp}_tp{tp}_cp{cp}_dp{dp}.pt"
    if "optimizer" in role.contents:
        name = f"optim/distrib_optim_{place}"
        if (cp == 0 and dp == 0) or name in there:
            yield name
        if any(one.endswith(".steps") for one in there):
            yield f"{name}.steps"
    if "extra" in role.contents:
        yield f"rng_states/rng_states_{place}"


def _other_world(there: Collection[str], world: int) -> str:
    """Return the number of ranks that saved an FSDP checkpoint, if it differs from the layout's."""
    worlds = {int(match[1]) for name in there if (match := _OTHER_WORLD.fullmatch(name))} - {world}
    return f" (it was saved by {min(worlds)} ranks, the recipe has {world})" if worlds else ""


def _zip_fault(folder: Path, name: str) -> str:
    """Return why a torch.save file is incomplete. Its zip directory is at the end."""
    try:
        with open_file(folder / name) as file, zipfile.ZipFile(cast("IO[bytes]", _Bounded(file))):
            return ""
    except FileNotFoundError:
        return f"{name} is missing"
    except zipfile.BadZipFile:
        size = (folder / name).stat().st_size
        return (
            f"{name} is empty"
            if size == 0
            else f"{name} is cut off, or damaged: its {size} bytes have no end"
        )
    except (OSError, ValueError, NotImplementedError) as error:
        return f"{name} can't be read: {error}"


class _Bounded:
    """A file with bounded reads, since zipfile trusts the size stated in an archive."""

    def __init__(self, file: BufferedReader) -> None:
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= LARGEST:
            left = os.fstat(self._file.fileno()).st_size - self.tell()
            if left > LARGEST:
                raise ValueError(f"its list of entries would have {max(size, left)} bytes")
        return self._file.read(size)


def _dist_fault(folder: Path) -> str:
    """Return what a Megatron-core torch_dist folder lacks, by the files, offsets and lengths in `.metadata`."""
    name = folder.name
    path = folder / ".metadata"
    try:
        metadata = read_pickle(read_file(path, _LARGEST), str(path))
        ends = _ends(metadata.get("storage_data"))
        for file, end in sorted(ends.items()):
            size = (folder / file).stat().st_size
            if size < end:
                return f"{name}/{file} is cut off: it has {size} bytes of {end}"
        read_json(folder / "metadata.json")
    except FileNotFoundError as error:
        return f"{name}/{Path(str(error.filename)).name} is missing"
    except (OSError, ValueError, AttributeError, TypeError, TensorError) as error:
        return f"{name}/ can't be read: {error}"
    fault = _zip_fault(folder, "common.pt")
    return f"{name}/{fault}" if fault else ""


def _ends(places: Any) -> dict[str, int]:
    """Return the end of the last entry in each file. Raises ValueError if an entry has no valid location."""
    ends: dict[str, int] = {}
    for place in places.values():
        file, start, length = place.get("relative_path"), place.get("offset"), place.get("length")
        if not is_file_name(file) or not isinstance(start, int):
            raise ValueError(".metadata has an entry without a file of this folder")
        ends[file] = max(ends.get(file, 0), start + int(length))
    return ends
