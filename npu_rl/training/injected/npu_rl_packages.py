"""An interpreter and its packages, from their metadata, without importing them. Standard library only.

`python npu_rl_packages.py` prints as JSON what `interpreter` returns: the fields of npu_rl.common.interpreter.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import sys
import sysconfig
from typing import Any

_BUILD_INFO = re.compile(r"^__(?:soc_version|device_type)__\s*=\s*['\"]([^'\"]+)", re.MULTILINE)


def interpreter(path: list[str]) -> dict[str, Any]:
    """Return this interpreter and the packages in some folders, in the order of sys.path."""
    mark = os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
    return {
        "path": sys.executable,
        "version": ".".join(map(str, sys.version_info[:3])),
        "machine": platform.machine(),
        "implementation": sys.implementation.name,
        "libc": platform.libc_ver(),
        "prefix": sys.prefix,
        "managed": sys.prefix == sys.base_prefix and os.path.exists(mark),
        **packages(path),
    }


def packages(path: list[str]) -> dict[str, Any]:
    """Return versions by canonical name, npu-rl's own requirements, and how vllm_ascend was built."""
    found: dict[str, str] = {}
    own: list[str] = []
    for one in importlib.metadata.distributions(path=path):
        name = one.metadata and one.metadata["Name"]
        if name and one.version:  # a damaged dist-info has none
            found.setdefault(
                re.sub(r"[-_.]+", "-", name).lower(), one.version
            )  # the imported one comes first
            own = own or (name == "npu-rl" and one.requires) or []
    return {
        "packages": found,
        "own_needs": own,
        "vllm_ascend": _vllm_ascend(path),
    }


def _vllm_ascend(path: list[str]) -> dict[str, Any] | None:
    """Return the folder of vllm_ascend, whether its compiled module exists, and the machine it was built for."""
    for folder in path:
        place = os.path.join(folder, "vllm_ascend")
        if not os.path.isfile(os.path.join(place, "__init__.py")):
            continue
        names = os.listdir(place)
        built_for = None
        if "_build_info.py" in names:
            with open(os.path.join(place, "_build_info.py"), encoding="utf-8", errors="replace") as file:
                text = _BUILD_INFO.search(file.read(1 << 16))
            built_for = text[1] if text else None
        compiled = any(name.startswith("vllm_ascend_C") and name.endswith(".so") for name in names)
        return {"place": place, "compiled": compiled, "built_for": built_for}
    return None


if __name__ == "__main__":
    print(json.dumps(interpreter(sys.path[1:])))
