"""CPU versions of torch_npu's ops; importing a module of this folder registers its ops.

Sources: the API documentation and the tests of Ascend/op-plugin (docs/zh/custom_APIs, test/test_custom_ops), and the
callers in MindSpeed 7ff818c, verl 55e3c5b and vllm-ascend v0.9.1rc2. As in NPU kernels, results are computed in
float32 and rounded once to their type. Limits of an NPU (sizes, alignments) are not checked unless a docstring says
so.
"""

from __future__ import annotations

from . import (
    activation,
    attention,
    attention_grad,
    formats,
    loss,
    matmul,
    moe_routing,
    moe_tokens,
    norm,
    optimizer,
    paged,
    rotary,
    rotary_cache,
    softmax,
)

__all__ = [
    "activation",
    "attention",
    "attention_grad",
    "formats",
    "loss",
    "matmul",
    "moe_routing",
    "moe_tokens",
    "norm",
    "optimizer",
    "paged",
    "rotary",
    "rotary_cache",
    "softmax",
]
