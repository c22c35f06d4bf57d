"""PYTHONPATH entries for the processes of a run: helpers, and stand-ins for hardware.

Each folder is a root and not a package of npu-rl: its modules run in the training interpreter, without npu-rl. Its
README lists the parts that are real and those that are not.
"""

from __future__ import annotations

from pathlib import Path

_TRAINING = Path(__file__).resolve().parents[1] / "training"

INJECTED = _TRAINING / "injected"  # in every run
NPU = _TRAINING / "standins" / "npu"  # torch_npu and MindSpeed's ops on a CPU
VLLM = _TRAINING / "standins" / "vllm"  # vLLM's compiled ops on a CPU
APEX = _TRAINING / "standins" / "apex"  # names of apex, which MindSpeed-LLM imports
TENSORS = (
    _TRAINING.parent / "weights" / "tensors"
)  # names of Megatron's tensors, for the check of weight syncs
