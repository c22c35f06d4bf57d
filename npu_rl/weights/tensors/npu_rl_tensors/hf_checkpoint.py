"""A Hugging Face checkpoint folder: config.json, an index and safetensors shards. Doesn't need torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from .regular_file import open_regular, read_regular
from .safetensors_file import HEADER_LIMIT, FileHeader, TensorEntry, parse_json, read_header
from .tensor_error import TensorError
from .untrusted_values import is_file_name, odd_name

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
EMBEDDINGS, HEAD = "model.embed_tokens.weight", "lm_head.weight"

_SAMPLE = 64 * 1024  # bytes at the beginning, in the middle and at the end of a shard's data
_LISTED = 5


class HfCheckpoint:
    """The shards of a folder. The index is read at once, and each shard's header on demand.

    Attributes:
        weight_map: Name of each tensor to its shard's file name.

    Raises:
        TensorError: For a folder, an index, a shard or a tensor that is not as it should be.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._headers: dict[str, FileHeader] = {}
        self.weight_map = self._read_weight_map()

    @cached_property
    def shards(self) -> tuple[str, ...]:
        """File names of the shards, sorted."""
        return tuple(sorted(self._listed))

    @cached_property
    def _listed(self) -> dict[str, set[str]]:
        """The tensors that the index lists, by shard."""
        found: dict[str, set[str]] = {}
        for name, shard in self.weight_map.items():
            found.setdefault(shard, set()).add(name)
        return found

    @cached_property
    def config(self) -> dict[str, Any]:
        """The content of config.json."""
        return read_object(self.folder / CONFIG)

    def header(self, shard: str) -> FileHeader:
        """Return the header of a shard, checked to have exactly the tensors that the index lists for it."""
        if shard not in self._headers:
            header = read_header(self.folder / shard)
            self._require_listed(shard, header)
            self._headers[shard] = header
        return self._headers[shard]

    def entry(self, name: str) -> TensorEntry:
        """Return a tensor's entry in its shard."""
        shard = self.weight_map.get(name)
        if shard is None:
            raise TensorError(f"Missing tensor {name}", where=str(self.folder))
        return self.header(shard).entries[name]

    def entries(self) -> Iterator[tuple[str, TensorEntry]]:
        """Yield each tensor with its shard's file name, in file order."""
        for shard in self.shards:
            for entry in self.header(shard).entries.values():
                yield shard, entry

    def digest(self) -> str:
        """Return a digest of the index, config.json, and the shards' sizes, headers and data samples.

        The samples distinguish models of the same layout, such as DeepSeek-V3 and R1. At most 192 KiB of each shard
        are read.
        """
        sums = hashlib.sha256()
        for name in (INDEX, CONFIG):
            path = self.folder / name
            sums.update(_framed(_read(path) if path.is_file() else b""))
        for shard in self.shards:
            header = self.header(shard)
            sums.update(_framed(f"{shard} {header.size}".encode()))
            sums.update(_framed(header.raw))
            begin = 8 + len(header.raw)
            with open_regular(header.path, 0) as stream:
                for at in (begin, (begin + header.size) // 2, max(begin, header.size - _SAMPLE)):
                    stream.seek(at)
                    sums.update(_framed(stream.read(_SAMPLE)))
        return sums.hexdigest()

    def _read_weight_map(self) -> dict[str, str]:
        if not self.folder.is_dir():
            raise TensorError(
                "The folder does not exist",
                where=str(self.folder),
                hint="Check the path, or download the model: npu-rl weights get NAME",
            )
        path = self.folder / INDEX
        if not path.is_file():
            if not (self.folder / SINGLE).is_file():
                raise TensorError(
                    "The folder has no weights in the safetensors format",
                    where=str(self.folder),
                    why=f"It has neither {INDEX} nor {SINGLE}.",
                )
            self._headers[SINGLE] = read_header(self.folder / SINGLE)
            if not self._headers[SINGLE].entries:
                raise TensorError("The file has no tensors", where=str(self.folder / SINGLE))
            return dict.fromkeys(self._headers[SINGLE].entries, SINGLE)
        names = read_object(path).get("weight_map")
        names = names if isinstance(names, dict) else {}
        weight_map = {name: str(shard).removeprefix("./") for name, shard in names.items()}
        shards = set(weight_map.values())
        if not shards or not all(is_file_name(name) and name.endswith(".safetensors") for name in shards):
            raise _invalid_index(path, "Its `weight_map` does not map each tensor to a file of this folder.")
        odd = odd_name(weight_map)
        if odd is not None:
            raise _invalid_index(path, f"It names a tensor {odd}.")
        self._require_shards(path, weight_map)
        return weight_map

    def _require_shards(self, path: Path, weight_map: Mapping[str, str]) -> None:
        named = set(weight_map.values())
        missing = sorted(name for name in named if not (self.folder / name).is_file())
        if not missing:
            return
        others = sorted(p.name for p in self.folder.glob("*.safetensors") if p.name not in named)
        unlisted = f"\nIn the folder, and not in the index: {listed(others)}." if others else ""
        raise TensorError(
            f"{len(missing)} of {len(named)} shards are missing",
            where=str(path),
            why=f"The index names {listed(missing)}.{unlisted}",
            hint="Download what is missing, or give renamed files their names back.",
        )

    def _require_listed(self, shard: str, header: FileHeader) -> None:
        lost = sorted(self._listed[shard] - header.entries.keys())
        other = sorted(header.entries.keys() - self._listed[shard])
        if not lost and not other:
            return
        raise TensorError(
            "A shard and the index disagree",
            where=str(self.folder / shard),
            why=f"Tensors that the index lists for it, and it lacks: {listed(lost) or 'none'}.\n"
            f"Tensors that it has, and the index lists elsewhere or nowhere: {listed(other) or 'none'}.",
            hint="Download both again from the same revision.",
        )


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file. Raises TensorError for other content or a repeated key."""
    try:
        found = parse_json(_read(path))
    except ValueError as error:
        raise TensorError(f"Invalid {path.name}", where=str(path), why=str(error)) from None
    if not isinstance(found, dict):
        raise TensorError(f"Invalid {path.name}", where=str(path), why="It is not a JSON object.")
    return found


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, HEADER_LIMIT)
    except FileNotFoundError:
        raise TensorError(f"{path.name} is missing", where=str(path.parent)) from None
    except ValueError as error:
        raise TensorError(f"Invalid {path.name}", where=str(path), why=str(error)) from None


def listed(names: list[str]) -> str:
    """Return the first names, and the number of the others, as text."""
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def _invalid_index(path: Path, why: str) -> TensorError:
    return TensorError("Invalid index of shards", where=str(path), why=why)


def _framed(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little") + data
