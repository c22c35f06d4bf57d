"""Runs a program's steps once for each plant, in forks of one process that has made the imports."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from npu_rl_recompute import loss_hooks


def change(names: list[str], changes: list[list[str]]) -> None:
    """Execute modules again with changed texts, as a patch would have them."""
    texts = {name: Path(sys.modules[name].__file__ or "").read_text() for name in names}
    before = dict(texts)
    for old, new in changes:
        texts = {name: text.replace(old, new) for name, text in texts.items()}
    assert not changes or texts != before, changes
    for name, text in texts.items():  # always: the hooks of the process that made the imports go
        exec(compile(text, str(sys.modules[name].__file__), "exec"), vars(sys.modules[name]))


def run(names: list[str], defaults: dict[str, Any], train: Callable[[dict[str, Any]], Any]) -> None:
    """Print one line of JSON for each plant of the JSON on the command line.

    Args:
        names: Modules that plants change, in the order of their imports.
        train: Trains with options, and returns the metrics of each step.
    """
    job = json.loads(sys.argv[1])
    for plant, (changes, options) in job.pop("plants").items():
        sys.stdout.flush()
        if os.fork():
            os.wait()
            continue
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        change(names, changes)
        loss_hooks.install()
        found: dict[str, Any] = {"plant": plant, "error": ""}
        try:
            found["metrics"] = train({**defaults, **job, **options})
        except RuntimeError as error:
            of_us = type(error).__name__ == "RecomputedDifferenceError"
            found["error"] = str(error) if of_us else traceback.format_exc()
        print(json.dumps(found, default=float), flush=True)
        os._exit(0)
