"""Content of a trainer's Parquet file: columns, data sources, prompts, samples. Read in bounded memory."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import open_file
from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import DataError
from npu_rl.data.datasets.bounded_parquet import BoundedParquet
from npu_rl.data.datasets.parquet_support import pyarrow
from npu_rl.data.datasets.prepare_dataset import problem_key
from npu_rl.data.datasets.prompt_templates import asked_for

SAMPLES = 3  # rows of each data source that the reward is tried on
SOURCES = 50  # data sources that are told apart
_BATCH = 1000


@dataclass
class TrainerFile:
    r"""The facts of one file.

    Attributes:
        faults: Faults of its columns; the rows are read only if there are none.
        sources: Rows by data source.
        forms: Rows by data source and the form of answer that the prompt asks for.
        doubled: Rows whose prompt spells `\\boxed` with two backslashes.
        samples: Some rows of each data source: ground_truth and extra_info.
        incomplete: Indexes of rows without a prompt, a data source or a ground truth; the first hundred.
        keys: A hash of each prompt.
        repeated: Rows with the same prompt as an earlier row.
    """

    path: Path
    rows: int = 0
    faults: list[str] = field(default_factory=list)
    sources: Counter[str] = field(default_factory=Counter)
    forms: Counter[tuple[str, str]] = field(default_factory=Counter)
    doubled: int = 0
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    incomplete: list[int] = field(default_factory=list)
    keys: set[bytes] = field(default_factory=set)
    repeated: int = 0


def read_trainer_file(path: Path, prompt_key: str, source_key: str) -> TrainerFile:
    """Read a file. Raises DataError if it is not a Parquet file, HostError for the disk and without pyarrow."""
    arrow, _ = pyarrow()
    found = TrainerFile(path)
    with disk_errors(path):
        try:
            opened = open_file(path)
        except FileNotFoundError:
            raise DataError(
                "No such file",
                where=str(path),
                hint="Make it: npu-rl data prepare DATASET --input FILE --output DIR",
            ) from None
    try:
        with disk_errors(path), opened as file:
            table = BoundedParquet(file, path)
            found.rows = table.rows
            found.faults = list(_faults(arrow, table.schema, prompt_key, source_key))
            if found.faults:
                return found
            names = table.schema.names
            wanted = [
                prompt_key,
                source_key,
                "reward_model",
                *(["extra_info"] if "extra_info" in names else []),
            ]
            index = 0
            for batch in table.batches(wanted, _BATCH):
                for row in batch.to_pylist():
                    _add(found, index, row, prompt_key, source_key)
                    index += 1
    except (arrow.ArrowException, OSError, ValueError, OverflowError, LookupError) as error:
        raise DataError(
            "This is not a whole Parquet file",
            where=str(path),
            why=str(error)[:300],
            hint="Prepare it again.",
        ) from error
    return found


def _faults(arrow: Any, schema: Any, prompt_key: str, source_key: str) -> list[str]:
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        return [f"has the column {name} twice" for name in twice]
    faults = [
        f"has no column {name}"
        for name in (prompt_key, source_key, "reward_model")
        if name not in schema.names
    ]
    if prompt_key in schema.names:
        kind = schema.field(prompt_key).type
        is_chat = arrow.types.is_list(kind) or arrow.types.is_large_list(kind)
        if not (
            is_chat and _has(arrow, kind.value_type, "role", "content") and _is_text(arrow, kind.value_type)
        ):
            faults.append(f"column {prompt_key} is {kind}, not a list of messages with role and content")
    if source_key in schema.names:
        kind = schema.field(source_key).type
        if not (arrow.types.is_string(kind) or arrow.types.is_large_string(kind)):
            faults.append(f"column {source_key} is {kind}, not text")
    if "reward_model" in schema.names and not _has(arrow, schema.field("reward_model").type, "ground_truth"):
        faults.append("column reward_model has no field ground_truth")
    return faults


def _is_text(arrow: Any, message: Any) -> bool:
    kind = message.field(message.get_field_index("content")).type
    return bool(arrow.types.is_string(kind) or arrow.types.is_large_string(kind))


def _has(arrow: Any, kind: Any, *names: str) -> bool:
    return bool(arrow.types.is_struct(kind)) and all(kind.get_field_index(name) >= 0 for name in names)


def _add(found: TrainerFile, index: int, row: dict[str, Any], prompt_key: str, source_key: str) -> None:
    chat, source = row[prompt_key], row[source_key]
    truth = (row["reward_model"] or {}).get("ground_truth")
    chat = [message for message in chat or () if message]
    text = "\n".join(message["content"] or "" for message in chat)
    if not text.strip() or not source or truth in (None, ""):
        if len(found.incomplete) < 100:
            found.incomplete.append(index)
        return
    if source not in found.sources and len(found.sources) >= SOURCES:
        source = "(others)"
    found.sources[source] += 1
    found.forms[source, asked_for(chat)] += 1
    found.doubled += r"\\boxed" in text
    if source != "(others)" and len(found.samples.setdefault(source, [])) < SAMPLES:
        sample = {"ground_truth": truth, "extra_info": row.get("extra_info")}
        found.samples[source].append(
            json.loads(json.dumps(sample, default=str))
        )  # dates and bytes, for the reward
    key = problem_key(text)
    found.repeated += key in found.keys
    found.keys.add(key)
