"""npu-rl's stand-in for torch_npu, imported in its place by a rehearsal on a CPU.

Its ops are computed in plain torch, each with a test against an independent formulation; others raise with their name
(missing.py). It does not pretend to be an NPU: the version has a local part, the device is called a stand-in, and
torch.npu.is_available() is False. `python -m torch_npu` lists the ops.
"""

from __future__ import annotations

from typing import NoReturn

import torch

from . import device, distributed, library, missing, npu_namespace, ops
from .registry import OPS

__version__ = "2.5.1.post1+npu_rl.standin"
NPU_RL_STANDIN = True
unsupported_dtype = [torch.quint8, torch.quint4x2, torch.quint2x4, torch.qint32, torch.qint8]
"""Types that an NPU does not support; MindSpeed's multi-modal modules read it at import."""

missing.install()
device.install()
library.install()
npu = npu_namespace.build()
_C = distributed.build()
globals().update(OPS)

# Stand-ins for what MindSpeed compiles at run time; the package is beside this one on PYTHONPATH.
import npu_rl_standins_npu  # noqa: E402

npu_rl_standins_npu.install()


def __getattr__(name: str) -> NoReturn:
    missing.raise_missing("torch_npu", name)


__all__ = ["NPU_RL_STANDIN", "npu", "ops", *OPS]
