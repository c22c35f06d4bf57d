"""Adaptation cached-kv-bytes: a run's KV cache isn't limited to the size of an earlier run's cache.

After capturing torchair's graphs, vllm-ascend 0.9.1rc2 writes the size of its KV cache to
`.torchair_cache/.kv_cache_bytes` in the worker's current folder. The next engine that finds the file takes that size if
as much memory is free (vllm_ascend/worker/worker_v1.py:196). A cached graph needs it. Without `use_cached_graph` the
graphs are compiled again, and a larger rollout.memory_share has no effect in the same folder. vllm-ascend 19c7b3ec67
reads the file only where an option enables it.
"""

from __future__ import annotations

from typing import Any

from .switches import enabled
from .used import count

SLUG = "cached-kv-bytes"


def are_read(graphs: Any) -> bool:
    """Return whether an engine takes the KV cache's size from the file.

    graphs: vllm-ascend's torchair_graph_config.
    """
    if not enabled(SLUG) or graphs.use_cached_graph:
        return True
    count(SLUG)
    return False
