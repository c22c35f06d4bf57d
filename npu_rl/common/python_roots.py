"""PYTHONPATH entries for the processes of a run: helpers, and stand-ins for hardware.

Each folder is a root and not a package of npu-rl: its modules run in the training interpreter, without npu-rl. Its
README lists the parts that are real and those that are not.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]

INJECTED = _PACKAGE / "training" / "injected"  # in every run
REHEARSAL = _PACKAGE / "rehearsal" / "injected"  # where a CPU stands in for a device
NPU = _PACKAGE / "rehearsal" / "standins" / "npu"  # torch_npu and MindSpeed's ops on a CPU
VLLM = _PACKAGE / "rehearsal" / "standins" / "vllm"  # vLLM's compiled ops on a CPU
APEX = _PACKAGE / "rehearsal" / "standins" / "apex"  # names of apex, which MindSpeed-LLM imports
TENSORS = _PACKAGE / "weights" / "tensors"  # names of Megatron's tensors, for the check of weight syncs
