"""The .bin and .idx files that MindSpeed-RL's trainer loads, made by the tree's own preprocessor."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from npu_rl.common import host_facts, python_roots
from npu_rl.common.bounded import open_file
from npu_rl.common.disk import disk_errors, remove_tree
from npu_rl.common.errors import DataError, HostError, WorkspaceError
from npu_rl.common.process import run_quietly
from npu_rl.data.data_check.child_environment import child_environment
from npu_rl.data.datasets.parquet_rows import ParquetRows

CONFIG = "deepscaler"
"""The argument that the document leaves out; preprocess_data.sh then takes alpaca_pairwise (:11@62e9928)."""

PREFIXES = ("data", "test")
"""What the names of the files begin with. `data` is what the trainer's `data_path` ends with."""

_TIMEOUT = 3600.0
_MAGIC = b"MMIDIDX\x00\x00"  # then version (8 bytes), type (1) and number of sequences (8), little-endian
_SCRIPT, _CONFIG_FILE = "cli/preprocess_data.py", f"configs/datasets/{CONFIG}.yaml"


def require_preprocessor(code: Path) -> None:
    """Raise WorkspaceError in a tree without MindSpeed-RL."""
    if not all((code / name).is_file() for name in (_SCRIPT, _CONFIG_FILE)):
        raise WorkspaceError(
            "The workspace's tree has no MindSpeed-RL",
            where=str(code),
            why=f"It has no {_SCRIPT} with {_CONFIG_FILE}.",
            hint="Name a workspace that has it: --workspace DIR, set up with --manifest mindspeed-rl-grpo",
        )


def preprocess(code: Path, python: str, tokenizer: Path, files: Sequence[Path]) -> dict[str, int]:
    """Make the files beside the Parquet files that they are derived from; return the number of rows of each.

    Args:
        files: Parquet files for training and for tests, as `data prepare` makes them.

    Raises:
        HostError: If the preprocessor fails.
        DataError: If it leaves rows out.
    """
    made: dict[str, int] = {}
    for prefix, file in zip(PREFIXES, files, strict=True):
        work = file.with_suffix(".work")
        try:
            with disk_errors(work):
                work.mkdir()
                rows = _write_lines(file, work / "rows.jsonl")
            _run(code, python, tokenizer, work / "rows.jsonl", file.parent / prefix)
        finally:
            remove_tree(work)
        for index in sorted(file.parent.glob(f"{prefix}_packed_*_document.idx")):
            kept = sequences(index)
            if kept != rows:
                raise DataError(
                    f"MindSpeed-RL's preprocessor left out {rows - kept} of {rows} rows",
                    where=index.name,
                    why="It drops rows without tokens, and those longer than seq_length of its configuration.",
                    hint="Leave them out of the input, or raise seq_length.",
                )
            made[index.with_suffix(".bin").name] = made[index.name] = rows
        if f"{prefix}_packed_input_ids_document.bin" not in made:
            raise HostError("MindSpeed-RL's preprocessor wrote no input_ids", where=str(code / _SCRIPT))
    return made


def _write_lines(file: Path, lines: Path) -> int:
    """Write each problem with its right answer as a line of JSON; return their number."""
    rows = ParquetRows(file, ["reward_model", "extra_info"])
    with lines.open("w", encoding="utf-8") as output:
        for row in rows:
            plain = {"problem": row["extra_info"]["question"], "answer": row["reward_model"]["ground_truth"]}
            output.write(json.dumps(plain, ensure_ascii=False) + "\n")
    return rows.rows


def sequences(index: Path) -> int:
    """Return the number of sequences of an .idx file (mindspeed_rl/datasets/indexed_dataset.py@62e9928)."""
    with disk_errors(index), open_file(index) as file:
        head = file.read(26)
    if len(head) < 26 or not head.startswith(_MAGIC):
        raise DataError("This is not the index of a dataset", where=str(index))
    return int.from_bytes(head[18:], "little")


def _run(code: Path, python: str, tokenizer: Path, file: Path, output: Path) -> None:
    script = python_roots.INJECTED / "npu_rl_mindspeed_rl_data.py"
    work = file.parent
    arguments = [
        f"input={file}",
        f"tokenizer_name_or_path={tokenizer}",
        f"output_prefix={output}",
        "workers=1",  # a pool writes the rows in an order of its own
        f"+cache_dir={work / 'cache'}",
        f"hydra.run.dir={work / 'hydra'}",
        "hydra.output_subdir=null",
        "hydra/job_logging=disabled",
    ]
    command = [python, str(script), str(code), CONFIG, *arguments]
    # On a host without an NPU torch_npu's stand-in takes its place.
    roots = [
        python_roots.INJECTED,
        *([] if host_facts.devices("npu") else [python_roots.REHEARSAL, python_roots.NPU]),
    ]
    more = {"HF_DATASETS_CACHE": str(work / "cache"), "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    finished = run_quietly(command, child_environment(roots, code, more), work, _TIMEOUT)
    if finished.code != 0:
        raise HostError(
            "MindSpeed-RL's preprocessor failed",
            where=f"{code / _SCRIPT} in {python}",
            why="\n".join(finished.stderr.strip().splitlines()[-4:])[-1500:]
            or f"exit status {finished.code}",
            hint="Name an interpreter with torch, transformers, datasets and hydra-core: --python PATH",
        )
