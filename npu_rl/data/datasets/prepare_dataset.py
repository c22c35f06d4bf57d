"""Preparation of train.parquet and test.parquet from a downloaded dataset, with a report of every dropped row.

Beside the input it takes the memory of one batch of rows, and 16 bytes and a checksum for each distinct problem.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import hash_file
from npu_rl.common.disk import disk_errors, remove_tree
from npu_rl.common.errors import DataError, UsageError
from npu_rl.common.user_path import existing_file
from npu_rl.data.datasets.input_rows import Progress, input_rows
from npu_rl.data.datasets.known_datasets import DATASETS, Dataset, dataset_like, text_of
from npu_rl.data.datasets.prompt_templates import TEMPLATES, Template
from npu_rl.data.datasets.trainer_parquet import TrainerParquet

TRAIN, TEST, REPORT = "train.parquet", "test.parquet", "prepared.json"
SCHEMA = 1

NO_PROBLEM, NO_ANSWER, DUPLICATE, CONTRADICTION = "no-problem", "no-answer", "duplicate", "contradiction"
REASONS = {
    NO_PROBLEM: "without a problem",
    NO_ANSWER: "without an answer",
    DUPLICATE: "repeat an earlier row",
    CONTRADICTION: "repeat an earlier problem with another answer",
}

_SPACES = re.compile(r"\s+")


@dataclass(frozen=True)
class Wanted:
    """The input and the options of a preparation.

    Attributes:
        test_input: The dataset's own test file; None splits the input.
        valid: Share of the input's problems that is put into test.parquet.
        seed: Seed of the choice of these problems.
    """

    dataset: Dataset
    template: Template
    input: Path
    test_input: Path | None = None
    valid: float = 0.1
    seed: int = 0


def wanted_of(
    dataset: str, template: str | None, input: Path, test: Path | None, valid: float, seed: int
) -> Wanted:
    """Return the options of a preparation. Raises UsageError for a missing file or a share that is none."""
    if not 0 < valid < 1:
        raise UsageError(
            f"--test-fraction {valid} is not a share", hint="Write a number between 0 and 1, such as 0.1."
        )
    known, read = DATASETS[dataset], existing_file(input, "--input")
    own_test = existing_file(test, "--test") if test else None
    if own_test is not None and own_test.name == read.name:
        raise UsageError(
            "--input and --test have the same file name",
            where=read.name,
            why="The report lists rows by file name and index.",
            hint="Rename one of them.",
        )
    return Wanted(known, TEMPLATES[template or known.template], read, own_test, valid, seed)


@dataclass
class PreparedFiles:
    """The result of a preparation, which is its report. It names no folder and no time: the same input gives the same.

    Attributes:
        template: Name of the prompts' template; None if another program renders them.
        asks_for: The form of answer that the template asks for.
        valid: Share of the input's problems in test.parquet; None if the dataset has a test file of its own.
        inputs: SHA-256 by file name.
        dropped: By reason, by input file: the indexes of the rows, counted from 0.
        leaked: Indexes of the test file's rows whose problem is in train.parquet, too; they are kept.
        files: Rows, size and SHA-256 of each file.
        lengths: Prompt lengths in tokens, if they were counted.
    """

    schema: int
    dataset: str
    data_source: str
    template: str | None
    asks_for: str | None
    valid: float | None
    seed: int
    inputs: dict[str, str] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    leaked: list[int] = field(default_factory=list)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    lengths: dict[str, Any] | None = None

    def left_out(self) -> list[str]:
        """Return how many rows were left out for each reason, in words."""
        counts = {reason: sum(map(len, files.values())) for reason, files in self.dropped.items()}
        return [f"{counts[reason]} {text}" for reason, text in REASONS.items() if reason in counts]

    def drop(self, reason: str, file: str, index: int) -> None:
        """Record a dropped row."""
        self.dropped.setdefault(reason, {}).setdefault(file, []).append(index)


def prepare_dataset(
    wanted: Wanted,
    folder: Path,
    progress: Progress,
    count_tokens: Callable[[list[Path]], dict[str, Any]] | None = None,
    convert: Callable[[list[Path]], dict[str, int]] | None = None,
) -> PreparedFiles:
    """Write the two Parquet files and the report into an empty folder.

    Args:
        count_tokens: Measures the prompts of the files; its result is the report's `lengths`.
        convert: Makes another trainer's files of the two, which are removed afterwards. It returns the number of rows
            by file.

    Raises:
        DataError: For an input that is damaged, of another dataset, or without one usable row.
        HostError: For a disk that is full, and without pyarrow.
    """
    template = wanted.template if convert is None else None
    prepared = PreparedFiles(
        SCHEMA,
        wanted.dataset.name,
        wanted.dataset.data_source,
        template.name if template else None,
        template.asks_for if template else None,
        None if wanted.test_input else wanted.valid,
        wanted.seed,
    )
    paths = [folder / name for name in (TRAIN, TEST)]
    with TrainerParquet(paths[0]) as train, TrainerParquet(paths[1]) as test:
        seen: dict[bytes, int] = {}
        for key, row in _usable_rows(wanted, wanted.input, prepared, seen, progress):
            _add(row, test if _is_test(key, wanted.seed, prepared.valid or 0) else train)
        if wanted.test_input:
            for key, row in _usable_rows(wanted, wanted.test_input, prepared, {}, progress):
                if key in seen:
                    prepared.leaked.append(row["extra_info"]["index"])
                _add(row, test)
    rows = {path.name: file.rows for path, file in zip(paths, (train, test), strict=True)}
    _require_rows(wanted, prepared, rows)
    if convert is not None:
        rows = convert(paths)
        for path in paths:
            remove_tree(path)
    prepared.files = {name: _file_facts(folder / name, count) for name, count in rows.items()}
    if count_tokens is not None:
        prepared.lengths = count_tokens(paths)
    with disk_errors(folder):
        (folder / REPORT).write_text(json.dumps(asdict(prepared), indent=1) + "\n", encoding="utf-8")
    return prepared


def problem_key(question: str) -> bytes:
    """Return a key that is the same for problems that differ in white space only."""
    return hashlib.blake2b(_SPACES.sub(" ", question.strip()).encode(), digest_size=16).digest()


def _is_test(key: bytes, seed: int, share: float) -> bool:
    """Return whether a problem goes to test.parquet, which depends on the problem and the seed alone."""
    drawn = hashlib.blake2b(key, digest_size=8, key=seed.to_bytes(8, "big")).digest()
    return int.from_bytes(drawn, "big") < share * 2**64


def _usable_rows(
    wanted: Wanted, path: Path, prepared: PreparedFiles, seen: dict[bytes, int], progress: Progress
) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield the rows to keep in the trainer's format, each with the key of its problem; note the others.

    Args:
        seen: Keys of the problems so far; a checksum of the answer each.
    """
    dataset = wanted.dataset
    index = -1
    for index, raw in enumerate(input_rows(path, progress, {*dataset.fields, dataset.solution})):
        if index == 0:
            _require_shape(dataset, path, raw)
        question = text_of(raw, dataset.question)
        text = text_of(raw, dataset.answer)
        answer = dataset.right_answer(text) if text else None
        if question is None or answer is None:
            prepared.drop(NO_PROBLEM if question is None else NO_ANSWER, path.name, index)
            continue
        question, answer = _encodable(question), _encodable(answer)
        key, checksum = problem_key(question), zlib.crc32(answer.encode())
        if key in seen:
            prepared.drop(DUPLICATE if seen[key] == checksum else CONTRADICTION, path.name, index)
            continue
        seen[key] = checksum
        solution = _encodable(text_of(raw, dataset.solution) or "")
        chat, truth = wanted.template.chat(question), {"style": "rule", "ground_truth": answer}
        extra = {"index": index, "question": question, "answer": solution}
        made = {"data_source": dataset.data_source, "prompt": chat, "ability": "math"}
        yield key, {**made, "reward_model": truth, "extra_info": extra}
    prepared.read[path.name] = index + 1
    prepared.inputs[path.name] = hash_file(path)


def _add(row: dict[str, Any], file: TrainerParquet) -> None:
    row["extra_info"]["split"] = file.path.stem
    file.add(row)


def _encodable(text: str) -> str:
    """Return the text with lone surrogates, which JSON may name and UTF-8 can't hold, replaced."""
    return text.encode("utf-8", "replace").decode() if not text.isascii() else text


def _require_shape(dataset: Dataset, path: Path, row: dict[str, Any]) -> None:
    missing = [name for name in dataset.fields if name not in row]
    if not missing:
        return
    like = dataset_like(set(row))
    raise DataError(
        f"The input is not {dataset.name}: row 0 has no field {' and no field '.join(missing)}",
        where=str(path),
        why=f"Its fields: {', '.join(sorted(map(str, row))[:12]) or 'none'}.",
        hint=f"It looks like {like}: npu-rl data prepare {like} ..."
        if like
        else "Pass the dataset's own file.",
    )


def _require_rows(wanted: Wanted, prepared: PreparedFiles, rows: dict[str, int]) -> None:
    """Raise DataError if one of the files has no row: the trainer loads both."""
    for name in (name for name, count in rows.items() if not count):
        raise DataError(
            f"No row is left for {name}",
            where=str(wanted.test_input if wanted.test_input and name == TEST else wanted.input),
            why="; ".join([f"{sum(prepared.read.values())} rows read", *prepared.left_out()]),
            hint="Pass another --test-fraction." if any(rows.values()) else "Pass the dataset's own file.",
        )


def _file_facts(path: Path, rows: int) -> dict[str, Any]:
    with disk_errors(path):
        return {"rows": rows, "bytes": path.stat().st_size, "sha256": hash_file(path)}
