"""Count the prompt tokens in Parquet files like verl before training, and print the counts as JSON.

    python npu_rl_prompt_lengths.py TOKENIZER PROMPT_KEY LIMIT FILE...

LIMIT is 0 for none. Per file name: `rows`, `longest`, `mean`, `overlong` (the number of prompts with more than LIMIT
tokens) and `overlong_rows` (the index of the first thousand). Prompts are rendered with the tokenizer's chat template
and a generation prompt (verl/utils/dataset/rl_dataset.py:137@55e3c5b). torch is not imported.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

MOST_LISTED = 1000


def measure(tokenizer: Any, path: Path, prompt_key: str, limit: int) -> dict[str, Any]:
    """Return the counts of one file.

    npu-rl has read its rows before with little memory (datasets/parquet_child.py), or has written them.
    """
    import pyarrow.parquet as parquet

    rows = total = longest = overlong = 0
    listed: list[int] = []
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=100, columns=[prompt_key]):
            for chat in batch.column(0).to_pylist():
                length = len(tokenizer.apply_chat_template(chat, add_generation_prompt=True))
                total += length
                longest = max(longest, length)
                if limit and length > limit:
                    overlong += 1
                    if len(listed) < MOST_LISTED:
                        listed.append(rows)
                rows += 1
    return {
        "rows": rows,
        "longest": longest,
        "mean": round(total / rows, 1) if rows else 0.0,
        "overlong": overlong,
        "overlong_rows": listed,
    }


def main() -> None:
    """Measure all files."""
    os.environ.update(
        USE_TORCH="0", USE_TF="0", USE_JAX="0", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1"
    )
    from transformers import AutoTokenizer

    folder, prompt_key, limit, *files = sys.argv[1:]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    counts = {Path(file).name: measure(tokenizer, Path(file), prompt_key, int(limit)) for file in files}
    print("\n" + json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
