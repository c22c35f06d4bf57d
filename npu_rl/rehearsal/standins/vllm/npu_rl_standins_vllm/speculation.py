"""vLLM without numba: 165 MB that 0.9.1 imports for one method of speculative decoding, which no rehearsal uses.

vllm/v1/worker/gpu_model_runner.py imports vllm/v1/spec_decode/ngram_proposer.py, whose functions numba compiles. If
numba is installed, nothing is changed; else the proposer is a class that can't be created.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType
from typing import NoReturn

from npu_rl_standins.unsupported import NoCpuVersion

MODULE = "vllm.v1.spec_decode.ngram_proposer"


class NgramProposer:
    """A class in place of vLLM's, which the model runner creates only for `speculative_config={"method": "ngram"}`."""

    def __init__(self, *_: object, **__: object) -> NoReturn:
        raise NoCpuVersion(f"{MODULE}.NgramProposer (numba, which compiles it, is not installed)")


def install() -> None:
    """Replace the proposer's module unless numba is installed."""
    if find_spec("numba") is None:
        module = ModuleType(MODULE, "npu-rl's stand-in: numba is not installed.")
        module.NgramProposer = NgramProposer  # type: ignore[attr-defined]
        sys.modules[MODULE] = module
