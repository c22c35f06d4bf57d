"""Counts of what stood in, by the runtime's own counter (npu_rl/runtime/used.py), in files named after this package."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

_spec: Any = spec_from_file_location(__name__, Path(__file__).resolve().parents[3] / "runtime" / "used.py")
_counter: Any = module_from_spec(_spec)
_spec.loader.exec_module(_counter)
count = _counter.count
