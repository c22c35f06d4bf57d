"""vllm-ascend does not start from its sources: setup.py writes the module that it asks for its chip.

Called are vllm_ascend.utils' is_310p and sleep_mode_enabled @1de16ea, with two chips in SOC_VERSION, and its compiled
module is imported from the folder of VLLM_ASCEND_BUILT. Each is a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from witness_common import show

STAND_INS = ("npu",)
RIGHT = {
    "neither": {"is_310p": False, "sleep_mode_enabled": False, "compiled": None},
    "chip": {"is_310p": True, "sleep_mode_enabled": False, "compiled": None},
    "module": {"is_310p": False, "sleep_mode_enabled": True, "compiled": "built elsewhere"},
}


def main() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "vllm_ascend_C.py").write_text("NAME = 'built elsewhere'\n")
        given = {
            "neither": {},
            "chip": {"SOC_VERSION": "Ascend310P3"},
            "module": {"VLLM_ASCEND_BUILT": folder},
        }
        found = {name: asked(variables) for name, variables in given.items()}
    return {"fault": found != RIGHT, **found}


def asked(variables: dict[str, str]) -> Any:
    command = [sys.executable, "-W", "ignore", __file__, "ask"]
    done = subprocess.run(command, env=os.environ | variables, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def ask() -> dict[str, Any]:
    from vllm_ascend import utils

    try:
        found = {name: getattr(utils, name)() for name in ("is_310p", "sleep_mode_enabled")}
    except ImportError as error:
        return {"error": str(error)}
    try:
        from vllm_ascend import vllm_ascend_C
    except ImportError:
        return {**found, "compiled": None}
    return {**found, "compiled": vllm_ascend_C.NAME}


if __name__ == "__main__":
    show(ask if sys.argv[1:] else main)
