"""A rank on a node that reaches nothing outside ends with a NameError instead of finding the node's address.

Called is _get_current_node_ip of verl_patches/workers/vllm_rollout/vllm_parallel_state.py@bcd3be7, where every UDP
socket fails, as in a closed network, and `ifconfig` knows the interface of HCCL_SOCKET_IFNAME. vLLM's modules are names
that compute nothing.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

from npu_rl_standins.named_modules import NamedModules
from witness_common import show

FILE = "verl_patches/workers/vllm_rollout/vllm_parallel_state.py"
ADDRESS = "10.99.0.7"
IFCONFIG = f"""\
#!/bin/sh
[ "$1" = eth7 ] || {{ echo "$1: error fetching interface information: Device not found" >&2; exit 1; }}
echo "        inet {ADDRESS}  netmask 255.255.255.0  broadcast 10.99.0.255"
"""


class Unreachable:
    def __init__(self, *_: object) -> None:
        raise OSError(101, "Network is unreachable")


def main() -> dict[str, Any]:
    sys.meta_path.insert(0, NamedModules("vllm"))
    names = runpy.run_path(FILE)
    socket.socket = Unreachable  # type: ignore[assignment,misc]
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "ifconfig")
        program.write_text(IFCONFIG)
        program.chmod(0o755)
        os.environ |= {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "HCCL_SOCKET_IFNAME": "eth7"}
        try:
            address = names["_get_current_node_ip"]()
        except NameError as raised:
            return {"fault": True, "error": str(raised)}
        # An interface that isn't there is upstream's own fallback, by the host's name.
        os.environ["HCCL_SOCKET_IFNAME"] = "eth9"
        other = names["_get_current_node_ip"]()
    return {"fault": address != ADDRESS or other == ADDRESS, "address": address}


if __name__ == "__main__":
    show(main)
