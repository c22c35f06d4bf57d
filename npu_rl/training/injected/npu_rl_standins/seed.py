"""The recipe's seed in every process: NPU_RL_SEED plus 1009 times the rank, set once torch is imported.

verl seeds only the order of the data on the FSDP path, so two runs of one recipe would differ.
"""

from __future__ import annotations

import os
import random
from types import ModuleType

from .hooks import after_import


def install() -> None:
    """Seed Python now, and torch and numpy when they are imported."""
    if "NPU_RL_SEED" not in os.environ:
        return
    seed = (int(os.environ["NPU_RL_SEED"]) + 1009 * int(os.environ.get("RANK", "0"))) % 2**32
    random.seed(seed)

    def torch(module: ModuleType) -> None:
        module.manual_seed(seed)

    def numpy(module: ModuleType) -> None:
        module.random.seed(seed)

    after_import("torch", torch)
    after_import("numpy", numpy)
