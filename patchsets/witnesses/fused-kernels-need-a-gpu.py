"""verl's fused cross entropy can't be imported where Triton finds no GPU, though nothing calls it there.

Imported is verl/utils/kernel/linear_cross_entropy.py@796871d, beside a triton whose decorators find no driver.
"""

from __future__ import annotations

import importlib
from typing import Any
from unittest.mock import MagicMock

import torch
from witness_common import make_module, show

STAND_INS = ("npu",)


def no_gpu(*_: Any, **__: Any) -> Any:
    raise RuntimeError("0 active drivers")


def main() -> dict[str, Any]:
    importlib.import_module("verl")  # with what it imports of torch, which asks for a whole triton
    language = make_module("triton.language", __getattr__=lambda name: MagicMock())
    make_module(
        "triton", language=language, Config=MagicMock(), jit=lambda function: function, autotune=no_gpu
    )
    try:
        module = importlib.import_module("verl.utils.kernel.linear_cross_entropy")
    except RuntimeError as error:
        return {"fault": True, "imported": str(error)}
    try:
        module.linear_cross_entropy(torch.zeros(2, 4), torch.zeros(3, 4), torch.zeros(2, dtype=torch.int64))
    except RuntimeError as error:
        return {"fault": False, "called": str(error)}
    return {"fault": True, "called": None}


if __name__ == "__main__":
    show(main)
