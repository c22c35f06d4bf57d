"""Packages of an interpreter, from their metadata, without importing them. Standard library only.

    python npu_rl_packages.py

It prints what `packages` returns as JSON. npu-rl calls the functions itself for a host that is only a folder.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import sys
import sysconfig
from typing import Any

_BUILD_INFO = re.compile(r"^__(?:soc_version|device_type)__\s*=\s*['\"]([^'\"]+)", re.MULTILINE)


def packages(path: list[str]) -> dict[str, Any]:
    """Return all installed versions by canonical name, and facts on how vllm_ascend was built.

    Args:
        path: Folders of packages, in the order in which Python looks for them.
    """
    found: dict[str, list[str]] = {}
    for one in importlib.metadata.distributions(path=path):
        try:
            name, version = one.metadata["Name"], one.version
        except (KeyError, ValueError, OSError):
            continue  # a damaged dist-info
        if isinstance(name, str) and isinstance(version, str):
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), []).append(version)
    return {"packages": found, "vllm_ascend": _vllm_ascend(path)}


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


def this_interpreter() -> dict[str, Any]:
    """Return the version and path of this interpreter, and whether it belongs to the operating system (PEP 668)."""
    mark = os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
    return {
        "version": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "machine": os.uname().machine,
        "managed": sys.prefix == sys.base_prefix and os.path.exists(mark),
    }


def main() -> None:
    """Print the packages, version and path of this interpreter as JSON."""
    print(json.dumps({**this_interpreter(), **packages(sys.path[1:])}))


if __name__ == "__main__":
    main()
