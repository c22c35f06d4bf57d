"""Make a tiny model and questions for a rehearsal, in the training interpreter: no download, no network.

    python -m npu_rl_make FOLDER SEED ROWS [MODEL DATA]

FOLDER gets model/ (a DeepSeek-V3 with its tokenizer, about 170,000 parameters), train.parquet and test.parquet.
MODEL is tiny-deepseek-v3 (random weights) or tiny-deepseek-v3-sums, DATA digit-questions or boxed-sums; the second of
each is npu_rl_make_sums'. The sizes are the smallest that keep what makes the architecture: MLA with both ranks, one
dense and one mixture-of-experts layer with a shared expert and grouped top-k. qk_nope + qk_rope is 32, the least head
vLLM takes. The same seed and package versions give the same bytes.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import npu_rl_make_sums as sums
from npu_rl_make_tiny import make_tokenizer, question, random_model, save_model


def main() -> None:
    folder, seed, rows = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    of_model, of_data = sys.argv[4:] or ("tiny-deepseek-v3", "digit-questions")
    model = folder / "model"
    model.mkdir(parents=True)
    if of_model.endswith("-sums"):
        sums.make_model(model, seed)
    else:
        tokenizer = make_tokenizer()
        tokenizer.save_pretrained(model)
        save_model(random_model(tokenizer, seed), model, tokenizer)
    numbers = random.Random(seed)
    for split, count in (("train", rows), ("test", 16)):
        if of_data == "boxed-sums":
            made = sums.questions(count, numbers, split)
        else:
            made = digit_questions(count, numbers, split)
        write_questions(folder / f"{split}.parquet", made)


def digit_questions(rows: int, numbers: random.Random, split: str) -> list[dict[str, Any]]:
    """Sums whose answers a reward of one digit's share looks at, or doesn't."""
    pairs = [(numbers.randint(0, 9), numbers.randint(0, 9)) for _ in range(rows)]
    return [question("npu-rl/digit-questions", pair, split, index) for index, pair in enumerate(pairs)]


def write_questions(place: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), place)


if __name__ == "__main__":
    main()
