"""CPU versions of torch_npu's ops. Importing a module of this folder registers its ops.

Sources: the API documentation and the tests of Ascend/op-plugin (docs/zh/custom_APIs, test/test_custom_ops), and the
callers in MindSpeed 7ff818c, verl 55e3c5b and vllm-ascend v0.9.1rc2. Computed as NPU kernels do: in float32,
rounded once to the result's type. Limits that an NPU sets (sizes, alignments) are not checked unless a docstring
says so.
"""

from __future__ import annotations

from . import (
    activation,
    attention,
    attention_grad,
    form,
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
    "form",
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
