"""Values of expressions about the platform: in a rehearsal, on a CPU, and in the run."""

from __future__ import annotations

import ast
import re

Answer = bool | str | None
"""None: not known."""

_NAME = r"(?:\w+\.)*"
_PLATFORM = rf"{_NAME}current_platform\."
_NOT_KNOWN: dict[str, Answer] = {}

# By pattern: on a CPU, and by device in the run. Sources: verl/utils/device.py@0.5.0, transformers.utils.import_utils,
# vllm/platforms/interface.py and cpu.py@v0.9.1, vllm_ascend/platform.py@f20869e. torch.cuda.is_available is not among
# them: MindSpeed makes it the NPU's.
_ANSWERS: tuple[tuple[str, Answer, dict[str, Answer]], ...] = (
    (
        rf"{_NAME}(?:is_npu_available|is_torch_npu_available)(?:\(.*\))?",
        False,
        {"npu": True, "cuda": False},
    ),
    (rf"{_NAME}is_cuda_available(?:\(\))?", False, {"npu": False, "cuda": True}),
    (rf"{_PLATFORM}is_cpu\(\)", True, {"npu": False, "cuda": False}),
    (rf"{_PLATFORM}is_cuda\(\)", False, {"npu": False, "cuda": True}),
    (rf"{_PLATFORM}is_out_of_tree\(\)", False, {"npu": True, "cuda": False}),
    (
        rf"{_PLATFORM}(?:is_async_output_supported|is_sleep_mode_available)\(.*\)",
        False,
        {"npu": True, "cuda": True},
    ),
    (rf"{_NAME}is_pin_memory_available\(\)", False, {"npu": True, "cuda": True}),
    (
        rf"get_device_name\(\)|(?:self\.)?device_name|{_PLATFORM}device_(?:type|name)",
        "cpu",
        {"npu": "npu", "cuda": "cuda"},
    ),
    (  # npu_rl_runtime/rollout_dp_groups/groups.py: vllm-ascend's platform
        r"type\(current_platform\)\.__module__\.partition\('\.'\)\[0\]",
        "vllm",
        {"npu": "vllm_ascend", "cuda": "vllm"},
    ),
    # VLLM_MLA_DISABLE, which vllm_environment sets: the recipe's own value decides in the run.
    (rf"{_NAME}use_mla", False, _NOT_KNOWN),
    (rf"{_NAME}VLLM_MLA_DISABLE", True, _NOT_KNOWN),
    # A tensor may be in the host's memory in the run, too.
    (r"(?:.+[._])?device\.type", "cpu", _NOT_KNOWN),
    (r".+\.is_cpu", True, _NOT_KNOWN),
    (r".+\.is_(?:npu|cuda)", False, _NOT_KNOWN),
)


def platform_answer(node: ast.expr, device: str) -> Answer:
    """Return what an expression is on a device; None if that depends on more."""
    text = ast.unparse(node)
    for pattern, on_cpu, in_run in _ANSWERS:
        if re.fullmatch(pattern, text):
            return on_cpu if device == "cpu" else in_run.get(device)
    return None
