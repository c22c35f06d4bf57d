"""What is put before the code tree on PYTHONPATH: helpers of a run's own processes, and stand-ins for hardware.

Each folder here is one entry of PYTHONPATH and no package of npu-rl's: what is in it runs in the training interpreter,
without npu-rl. Its README says what is real in it and what is not.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).resolve().parent

INJECTED = _HERE / "injected"  # in every run
NPU = _HERE / "npu"  # torch_npu and MindSpeed's operators on a CPU
VLLM = _HERE / "vllm"  # what vLLM's engine needs of an NPU
