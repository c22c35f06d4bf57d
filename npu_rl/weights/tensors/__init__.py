"""A root of PYTHONPATH: the package `npu_rl_tensors`, which runs in an interpreter that has torch.

`npu_rl.weights.checkpoints` starts its workers, and imports those of its modules that need no torch.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent
PACKAGE = "npu_rl_tensors"
