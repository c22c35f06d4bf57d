"""`python -m torch_npu`: list the ops of npu-rl's stand-in for torch_npu."""

from __future__ import annotations

import torch_npu
from torch_npu.missing import PLACEHOLDER_MODULES
from torch_npu.registry import OPS

print(f"torch_npu {torch_npu.__version__}: npu-rl's stand-in. Computed on the CPU, in plain torch:")
for name, function in sorted(OPS.items()):
    print(f"  torch_npu.{name}: {(function.__doc__ or '').strip().splitlines()[0]}")
print("Importable, but nothing in them works:")
print("  " + ", ".join(PLACEHOLDER_MODULES))
