"""Check of the version of vLLM on the path."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec


def found() -> str:
    """Return the version of vLLM on the path without its local part ("+empty"); "" if it has no dist-info."""
    try:
        return distribution("vllm").version.partition("+")[0]
    except PackageNotFoundError:
        return ""


def check(wanted: str) -> None:
    """Raise RuntimeError unless the vLLM that Python imports is `wanted`, with any local version ("+empty")."""
    spec = find_spec("vllm")
    place = spec.origin if spec and spec.origin else "vllm"
    here = found()
    if here == wanted:
        return
    status = f"is {here}" if here else "has no dist-info beside it, so its version is not known"
    raise RuntimeError(
        f"npu-rl's stand-ins for vLLM are for {wanted}, and the vLLM on the path ({place}) {status}. They replace "
        f"functions of that version and would be wrong in another: set up a workspace with vllm {wanted}, or rehearse "
        "with the rollout `hf`."
    )
