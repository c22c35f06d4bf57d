"""Ask vllm-ascend for its chip and sleep mode, and import its compiled module. The output is one line of JSON.

On PYTHONPATH: the stand-ins for a CPU and for torch_npu, and a tree with vLLM and vllm-ascend.
"""

from __future__ import annotations

import importlib
import json
from typing import Any

from vllm_ascend import utils

found: dict[str, Any] = {}
for name in ("is_310p", "sleep_mode_enabled"):
    try:
        found[name] = getattr(utils, name)()
    except ImportError as error:
        found[name] = str(error)
try:
    found["compiled"] = importlib.import_module("vllm_ascend.vllm_ascend_C").NAME
except ImportError:
    found["compiled"] = None
print(json.dumps(found))
