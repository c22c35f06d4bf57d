"""The deepscaler reward as a file that verl loads by its path (`custom_reward_function`), for one response or a batch.

A module loaded by path has no package for relative imports, so this one uses the package two folders up, which is on
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
