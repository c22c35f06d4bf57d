"""Call upstream's `default_compute_score` out of its own file and print what came of each call.

    python run_reward.py TREE < CALLS

TREE has verl's `verl/utils/reward_score` and `npu_rl_runtime`. CALLS and the output are JSON: a list of [data source,
answer, right answer]; a list of scores, or the error by which upstream refuses a data source. Any other error, one of
an import too, ends this.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any


def main(tree: str) -> list[Any]:
    sys.path.insert(0, tree)
    for name in (
        "verl",
        "verl.utils",
    ):  # their own __init__ would import torch; the function needs none of it
        package = types.ModuleType(name)
        package.__path__ = [str(Path(tree, *name.split(".")))]
        sys.modules[name] = package
    score = importlib.import_module("verl.utils.reward_score").default_compute_score
    found: list[Any] = []
    for source, answer, right in json.load(sys.stdin):
        try:
            found.append(score(source, answer, right, extra_info={}))
        except NotImplementedError as error:
            found.append(f"NotImplementedError: {error}")
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
