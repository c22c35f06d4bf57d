"""Content of a trainer's Parquet file: columns, data sources, prompts, images, samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import open_file
from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import DataError
from npu_rl.data.datasets.parquet_rows import ParquetRows
from npu_rl.data.datasets.prepare_dataset import problem_key
from npu_rl.data.datasets.prompt_templates import asked_for

SAMPLES = 3  # rows of each data source that the reward is tried on
SOURCES = 50  # data sources that are told apart
_LISTED = 100  # row numbers that are kept of each fault


@dataclass(frozen=True)
class Columns:
    """Names of the columns that the trainer reads beside `reward_model` and `extra_info`."""

    prompt: str = "prompt"
    source: str = "data_source"
    images: str = "images"


@dataclass
class TrainerFile:
    r"""The facts of one file.

    Attributes:
        faults: Faults of its columns.
        sources: Rows by data source.
        forms: Rows by data source and the forms of answer that the prompt asks for.
        doubled: Rows whose prompt spells `\\boxed` with two backslashes.
        samples: Some rows of each data source: ground_truth and extra_info.
        incomplete: Indexes of rows without a prompt, a data source or a ground truth; the first hundred.
        images_differ: Indexes of rows with another number of images than `<image>` in the prompt; the first hundred.
        images_missing: Rows with `<image>` in the prompt and no image.
        keys: A hash of each prompt.
        repeated: Rows with the same prompt as an earlier row.
    """

    path: Path
    rows: int = 0
    faults: list[str] = field(default_factory=list)
    sources: Counter[str] = field(default_factory=Counter)
    forms: Counter[tuple[str, tuple[str, ...]]] = field(default_factory=Counter, repr=False)
    doubled: int = 0
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict, repr=False)
    incomplete: list[int] = field(default_factory=list)
    images_differ: list[int] = field(default_factory=list)
    images_missing: int = 0
    keys: set[bytes] = field(default_factory=set, repr=False)
    repeated: int = 0


def read_trainer_file(path: Path, columns: Columns | None = None) -> TrainerFile:
    """Read a file. Raises DataError if it is not a Parquet file, HostError for the disk and without pyarrow."""
    columns = columns or Columns()
    found = TrainerFile(path)
    with disk_errors(path):
        try:
            open_file(path).close()
        except FileNotFoundError:
            raise DataError(
                "No such file",
                where=str(path),
                hint="Make it: npu-rl data prepare DATASET --input FILE --output DIR",
            ) from None
    wanted = [columns.prompt, columns.source, "reward_model", "extra_info"]
    table = ParquetRows(path, wanted, [columns.images])
    faults: dict[str, None] = {}
    for index, row in enumerate(table):
        there = dict.fromkeys(_row_faults(row, columns, table.columns))
        faults |= there
        if not there:
            _add(found, index, row, columns)
    found.rows = table.rows
    faults |= dict.fromkeys(f"has no column {name}" for name in wanted[:3] if name not in table.columns)
    found.faults = sorted(faults)
    return found


def _row_faults(row: dict[str, Any], columns: Columns, types: dict[str, str]) -> Iterator[str]:
    """Yield the faults of the row's types; a value that is missing is not one of them."""
    chat, source, truth = (row.get(name) for name in (columns.prompt, columns.source, "reward_model"))
    if chat is not None and not (isinstance(chat, list) and all(map(_is_message, chat))):
        name = columns.prompt
        yield f"column {name} is {types[name]}, not a list of messages with role and content"
    if source is not None and not isinstance(source, str):
        yield f"column {columns.source} is {types[columns.source]}, not text"
    if truth is not None and not (isinstance(truth, dict) and "ground_truth" in truth):
        yield "column reward_model has no field ground_truth"


def _is_message(value: object) -> bool:
    if value is None:
        return True
    return (
        isinstance(value, dict)
        and value.keys() >= {"role", "content"}
        and isinstance(value["content"], (str, type(None)))
    )


def _add(found: TrainerFile, index: int, row: dict[str, Any], columns: Columns) -> None:
    source = row.get(columns.source)
    truth = (row.get("reward_model") or {}).get("ground_truth")
    text = "\n".join(message["content"] or "" for message in row.get(columns.prompt) or () if message)
    if not text.strip() or not source or truth in (None, ""):
        found.incomplete += [index][: _LISTED - len(found.incomplete)]
        return
    if source not in found.sources and len(found.sources) >= SOURCES:
        source = "(others)"
    found.sources[source] += 1
    found.forms[source, asked_for(text)] += 1
    found.doubled += r"\\boxed" in text
    images, named = row.get(columns.images) or 0, text.count("<image>")
    found.images_missing += bool(named and not images)
    if images and images != named:
        found.images_differ += [index][: _LISTED - len(found.images_differ)]
    samples = found.samples.setdefault(source, [])
    if source != "(others)" and len(samples) < SAMPLES:
        samples.append({"ground_truth": truth, "extra_info": row.get("extra_info")})
    key = problem_key(text)
    found.repeated += key in found.keys
    found.keys.add(key)
