"""torch.compile's backend "npu", which torch_npu registers and torchair compiles with.

vLLM 0.7.3 with vllm-ascend decorates a function with it where a file is imported
(vllm/model_executor/layers/vocab_parallel_embedding.py:138@ed6e907); torch finds it by the dist-info of the stand-ins.
"""

from __future__ import annotations

from typing import NoReturn

from npu_rl_standins.unsupported import NoCpuVersion

_NOTE = "torchair's graphs are for NPUs; TORCHDYNAMO_DISABLE=1 leaves them out."


def npu(*_: object, **__: object) -> NoReturn:
    """Raise NoCpuVersion: the name can be looked up, and nothing can be compiled with it."""
    raise NoCpuVersion("torch.compile(backend='npu')", _NOTE)
