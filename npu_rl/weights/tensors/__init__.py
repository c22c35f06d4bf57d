"""PYTHONPATH root of `npu_rl_tensors`, a package that runs in an interpreter with torch.

`npu_rl.weights.checkpoints` starts its workers, and imports those of its modules that need no torch.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent
PACKAGE = "npu_rl_tensors"
