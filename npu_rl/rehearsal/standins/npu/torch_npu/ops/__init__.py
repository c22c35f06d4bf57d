"""CPU versions of torch_npu's ops; importing a module of this folder registers its ops.

Sources: the API documentation and the tests of Ascend/op-plugin (docs/zh/custom_APIs, test/test_custom_ops), and the
callers in MindSpeed 7ff818c and verl 55e3c5b. vLLM's CPU platform stands in for vllm-ascend, whose own ops are missing
here. As in NPU kernels, results are computed in float32 and rounded once to their type. Limits of an NPU (sizes,
alignments) are not checked unless a docstring says so.
"""

from __future__ import annotations

from . import activation, attention, formats, loss, matmul, moe_tokens, norm, optimizer, rotary

__all__ = [
    "activation",
    "attention",
    "formats",
    "loss",
    "matmul",
    "moe_tokens",
    "norm",
    "optimizer",
    "rotary",
]
