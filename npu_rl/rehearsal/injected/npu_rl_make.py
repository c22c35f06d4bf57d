"""Make a tiny model and questions for a rehearsal in the training interpreter, without a network.

    python -m npu_rl_make FOLDER SEED ROWS [MODEL DATA]

FOLDER gets model/ (with its tokenizer; a DeepSeek-V3 has about 170,000 parameters), train.parquet and test.parquet.
MODEL is tiny-deepseek-v3 (random weights), tiny-deepseek-v3-sums, or a random tiny-qwen2, tiny-qwen3 or tiny-qwen3-moe.
DATA is digit-questions or boxed-sums; npu_rl_make_sums makes what ends in sums. The sizes are the smallest that keep
the architecture: MLA with both ranks, one dense and one mixture-of-experts layer with a shared expert and grouped
top-k. qk_nope + qk_rope is 32, the smallest head dimension that vLLM supports. The same seed and package versions give
the same bytes on CPUs of the same kind; a half trained model differs on others, whose sums are rounded otherwise.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import npu_rl_make_sums as sums
from npu_rl_make_tiny import make_tokenizer, question, random_model, random_qwen, save_model


def main() -> None:
    """Make the requested model and questions."""
    folder, seed, rows = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    model_kind, data_kind = sys.argv[4:] or ("tiny-deepseek-v3", "digit-questions")
    model = folder / "model"
    model.mkdir(parents=True)
    if model_kind.endswith("-sums"):
        sums.make_model(model)
    else:
        tokenizer = make_tokenizer()
        tokenizer.save_pretrained(model)
        is_qwen = model_kind.startswith("tiny-qwen")
        made = random_qwen(model_kind, tokenizer, seed) if is_qwen else random_model(tokenizer, seed)
        save_model(made, model, tokenizer)
    numbers = random.Random(seed)
    for split, count in (("train", rows), ("test", 16)):
        if data_kind == "boxed-sums":
            questions = sums.questions(count, numbers, split)
        else:
            questions = digit_questions(count, numbers, split)
        write_questions(folder / f"{split}.parquet", questions)


def digit_questions(rows: int, numbers: random.Random, split: str) -> list[dict[str, Any]]:
    """Return questions about sums. The reward is the share of one digit in the response, regardless of the sum."""
    pairs = [(numbers.randint(0, 9), numbers.randint(0, 9)) for _ in range(rows)]
    return [question("npu-rl/digit-questions", pair, split, index, index) for index, pair in enumerate(pairs)]


def write_questions(place: Path, rows: list[dict[str, Any]]) -> None:
    """Write the rows to a Parquet file."""
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), place)


if __name__ == "__main__":
    main()
