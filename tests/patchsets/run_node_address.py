"""Print the address that a rank gives of its node where nothing outside it can be reached.

    python run_node_address.py FILE

FILE is verl_patches/workers/vllm_rollout/vllm_parallel_state.py. What it imports of torch and vLLM is stood in for,
since only its search for an address is called; every UDP socket raises. `ifconfig` is the one on PATH.
"""

from __future__ import annotations

import socket
import sys
import types


class Unreachable:
    def __init__(self, *arguments: object) -> None:
        raise OSError(101, "Network is unreachable")


def main(path: str) -> str:
    for name in ("torch", "vllm", "vllm.envs", "vllm.distributed", "vllm.distributed.parallel_state"):
        module = types.ModuleType(name)
        module.__dict__["__getattr__"] = lambda name: None if name.startswith("i") else object()
        sys.modules[name] = module
        package, _, last = name.rpartition(".")
        if package:
            setattr(sys.modules[package], last, module)
    names: dict[str, object] = {"__name__": "vllm_parallel_state", "__file__": path}
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), names)
    socket.socket = Unreachable  # type: ignore[assignment,misc]
    return str(names["_get_current_node_ip"]())  # type: ignore[operator]


if __name__ == "__main__":
    print(main(sys.argv[1]))
