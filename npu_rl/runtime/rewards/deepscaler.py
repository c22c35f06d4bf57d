"""The deepscaler reward by a file's path, which is how verl loads a `custom_reward_function`: one response, or a batch.

Loaded by path a module has no package to be relative to, so this one finds it: two folders up, which is on
`PYTHONPATH` wherever the code tree is.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

_PACKAGE = __package__.rpartition(".")[0] if __package__ else Path(__file__).absolute().parent.parent.name
_reward: Any = importlib.import_module(f"{_PACKAGE}.deepscaler")

compute_score = _reward.compute_score
compute_scores = _reward.compute_scores
