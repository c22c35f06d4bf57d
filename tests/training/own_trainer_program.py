"""A trainer whose keys are its own: `own_trainer_program.py FOLDER [option ...] KEY=VALUE ...`

It writes lines and checkpoints as MindSpeed-RL and Megatron do, and goes on from one unless it is to finetune.
nan=N: the score of iteration N is not finite. die=N: end by SIGKILL after iteration N, as for want of memory.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import yaml

LATEST = "latest_checkpointed_iteration.txt"


def flat(config: dict[str, Any], prefix: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in config.items():
        inner = isinstance(value, dict)
        found |= flat(value, f"{prefix}{key}.") if inner else {prefix + key: str(value).lower()}
    return found


def main() -> None:
    words = sys.argv[2:]
    given = dict(word.lstrip("+").split("=", 1) for word in words if "=" in word and not word.startswith("-"))
    if "--config" in words:
        given |= flat(yaml.safe_load(Path(words[words.index("--config") + 1]).read_text()), "")
    total, every = int(given["training.train_iters"]), int(given.get("training.save_interval", 200))
    save, load = Path(given["actor.save"]), Path(given.get("actor.load", "/nothing"))
    first = 0
    if given.get("actor.finetune") == "false" and (load / LATEST).exists():
        first = int((load / LATEST).read_text())
    for iteration in range(first + 1, total + 1):
        score = "nan" if given.get("nan") == str(iteration) else f"{iteration / 10:.4f}"
        print(
            f"(train pid={os.getpid()}) 2025-06-01 10:00:00,123 - INFO - [2025-06-01 02:00:00] iteration: "
            f"{iteration} / {total} | timing/all : 0.5000 | grpo/score/mean : {score} | grpo/lr : 1.0e-06 ",
            flush=True,
        )
        if iteration % every == 0:
            (save / f"iter_{iteration:07d}").mkdir()
            (save / LATEST).write_text(str(iteration))
        if given.get("die") == str(iteration):
            os.kill(os.getpid(), signal.SIGKILL)


main()
