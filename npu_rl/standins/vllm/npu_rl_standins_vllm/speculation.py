"""vLLM without numba: 165 MB that 0.9.1 imports for one way of speculative decoding, which no rehearsal uses.

vllm/v1/worker/gpu_model_runner.py imports vllm/v1/spec_decode/ngram_proposer.py, whose functions numba compiles. Where
numba is installed nothing is changed; where it isn't, the proposer is a class that can't be made.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType
from typing import NoReturn

from npu_rl_standins.unsupported import NoCpuVersion

MODULE = "vllm.v1.spec_decode.ngram_proposer"


class NgramProposer:
    """In place of vLLM's, which the model runner makes for `speculative_config={"method": "ngram"}` only."""

    def __init__(self, *_: object, **__: object) -> NoReturn:
        raise NoCpuVersion(f"{MODULE}.NgramProposer (numba, which compiles it, is not installed)")


def install() -> None:
    """Put it in place unless numba is there."""
    if find_spec("numba") is None:
        module = ModuleType(MODULE, "npu-rl's stand-in: numba is not installed.")
        module.NgramProposer = NgramProposer  # type: ignore[attr-defined]
        sys.modules[MODULE] = module
