"""The check of MindSpeed-RL's data: .bin and .idx files that its trainer finds by `data_path`."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from npu_rl.common.bounded import open_file
from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import DataError
from npu_rl.common.yaml_documents.finding import Finding, Severity, file_finding
from npu_rl.data.data_check.mindspeed_rl_files import read_head
from npu_rl.data.datasets.trainer_files import TrainerFile
from npu_rl.recipes.recipe.load_recipe import LoadedRecipe
from npu_rl.recipes.recipe.recipe_paths import absolute

UNCHECKED = {
    "reward": "the trainer's keys are its own: its reward is not called",
    "lengths": "the prompts are token ids by now",
}
"""What is not checked of these files, and why."""

_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 8, 7: 4, 8: 2}  # of DType in indexed_dataset.py:410@62e9928
_DATA_PATH, _FIELDS = "data_path", "dataset_additional_keys"


def data_path_key(loaded: LoadedRecipe) -> str:
    """Return the trainer's key that names the files; "" for a recipe of another trainer."""
    recipe = loaded.recipe
    if not recipe.has_own_keys:
        return ""
    trainer = recipe.trainer
    if not any(dotted.startswith("mindspeed_rl.") for dotted in trainer.sections.values()):
        return ""
    return next((key for key in trainer.paths if key.rpartition(".")[2] == _DATA_PATH), "")


def read_packed_files(loaded: LoadedRecipe, folder: Path) -> tuple[list[TrainerFile], list[Finding]]:
    """Return the files that the trainer would find in a folder, and the findings on them.

    Raises:
        DataError: If there is no such folder, or no file in it whose name begins with the last part of `data_path`.
    """
    key = data_path_key(loaded)
    settings = loaded.settings
    named = settings[key].value if key in settings else ""
    prefix = Path(named).name if isinstance(named, str) and named else "data"
    if not folder.is_dir():
        raise DataError("No such folder", where=str(folder), hint=_MAKE)
    fields = settings.get(f"{key.rpartition('.')[0]}.{_FIELDS}")
    wanted = ["input_ids", *(fields.value if fields and isinstance(fields.value, list) else [])]
    indexes = {_field(path, prefix): path for path in sorted(folder.glob(f"{prefix}_packed_*_document.idx"))}
    if not indexes:
        listed = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) or "nothing"
        raise DataError(
            f"The folder has no {prefix}_packed_*_document.idx",
            where=str(folder),
            why=f"{key} ends with {prefix}. The folder has {listed}.",
            hint=_MAKE,
        )
    files = [_read(path) for path in indexes.values()]
    found = [*_file_findings(files), *_path_findings(loaded, key, named, folder / prefix)]
    for field in wanted:
        if field not in indexes:
            message = f"has no {prefix}_packed_{field}_document.idx, which the trainer reads"
            found.append(file_finding("data-columns", Severity.ERROR, folder, message, _FIX))
    return files, found


_MAKE = "Make them: npu-rl data prepare --for mindspeed-rl"
_FIX = "make them with npu-rl data prepare --for mindspeed-rl"


def _read(index: Path) -> TrainerFile:
    """Read an index's header and last sequence, and check the data's size against them."""
    found = TrainerFile(index)
    with disk_errors(index), open_file(index) as file:
        head = read_head(file)
        if head is None:
            found.faults.append("is not the index of a dataset")
            return found
        version, code, rows, documents = head
        begin, found.rows = file.tell(), rows
        if version != 1 or code not in _SIZES:
            found.faults.append(f"has version {version} and dtype {code}, which the trainer can't read")
            return found
        size = begin + 12 * rows + 8 * documents
        if index.stat().st_size != size:
            found.faults.append(
                f"has {index.stat().st_size} bytes, and {rows} rows in {documents - 1} documents take {size}"
            )
            return found
        if not rows:
            found.faults.append("has no row")
            return found
        file.seek(begin + 4 * (rows - 1))
        (length,) = struct.unpack("<i", file.read(4))
        file.seek(begin + 4 * rows + 8 * (rows - 1))
        (pointer,) = struct.unpack("<q", file.read(8))
    data = index.with_suffix(".bin")
    expected = pointer + length * _SIZES[code]
    there = data.stat().st_size if data.is_file() else None
    if there != expected:
        what = f"has {there} bytes" if there is not None else "is missing"
        found.faults.append(f"{data.name} {what}, but the index expects {expected}")
    return found


def _file_findings(files: list[TrainerFile]) -> Iterator[Finding]:
    for file in files:
        for fault in file.faults:
            yield file_finding("data-columns", Severity.ERROR, file.path, fault, _FIX)
    counts = {file.path.name: file.rows for file in files if not file.faults}
    if len(set(counts.values())) > 1:
        rows = ", ".join(f"{name}: {count}" for name, count in counts.items())
        yield file_finding(
            "data-rows", Severity.ERROR, files[0].path.parent, f"the files differ in rows: {rows}", _FIX
        )


def _path_findings(loaded: LoadedRecipe, key: str, named: object, made: Path) -> Iterator[Finding]:
    """Yield a finding if `data_path` names another folder than the checked one."""
    if not isinstance(named, str) or not named or Path(absolute(named, loaded.path.parent)) != made:
        message = f"{key} names {named or 'nothing'}"
        yield file_finding("data-path", Severity.ADVICE, made.parent, message, f"set overrides.{key}={made}")


def _field(path: Path, prefix: str) -> str:
    return path.name.removeprefix(f"{prefix}_packed_").removesuffix("_document.idx")
