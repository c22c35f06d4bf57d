"""torch_npu._C as far as process groups use it: options that are accepted and have no effect without HCCL."""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from .missing import raise_missing


class Options:
    """ProcessGroupHCCL.Options; a gloo group has to be created without them."""

    hccl_config: dict[str, Any] = {}  # noqa: RUF012  a class attribute that MindSpeed looks for with hasattr

    def __init__(self) -> None:
        self.hccl_config = {}
        self.is_high_priority_stream = False


class ProcessGroupHCCL:
    """The class with its options only; creating it raises, since HCCL needs NPUs."""

    Options = Options

    def __init__(self, *_: Any, **__: Any) -> None:
        raise_missing("torch_npu._C._distributed_c10d", "ProcessGroupHCCL")


def build() -> ModuleType:
    """Create torch_npu._C and torch_npu._C._distributed_c10d."""
    inner = ModuleType("torch_npu._C._distributed_c10d")
    inner.ProcessGroupHCCL = ProcessGroupHCCL  # type: ignore[attr-defined]
    outer = ModuleType("torch_npu._C")
    outer.__path__ = []
    outer._distributed_c10d = inner  # type: ignore[attr-defined]
    for module in (outer, inner):
        name = module.__name__
        module.__getattr__ = functools.partial(raise_missing, name)  # type: ignore[method-assign]
        sys.modules[name] = module
    return outer
