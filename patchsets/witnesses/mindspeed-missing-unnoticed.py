"""verl's Megatron worker is built without MindSpeed where MindSpeed can't be imported, and reports nothing.

verl/workers/megatron_workers.py@55e3c5b takes any ImportError of mindspeed.megatron_adaptor for a machine without NPUs.
Here it is that of torch_npu, which a host without the stand-in lacks. "repatch" is MindSpeed's function in the imported
module, or null; "built" is whether the worker came past it; else "error", "module" and "cause" are of what it raised.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from witness_common import show


def main() -> dict[str, Any]:
    import verl.workers.megatron_workers as workers

    repatch = workers.repatch
    found: dict[str, Any] = {"repatch": repatch and f"{repatch.__module__}.{repatch.__name__}"}
    os.environ |= {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    # `get` is lacking, which a worker asks for after `repatch`
    config = SimpleNamespace(actor=SimpleNamespace(megatron={"override_transformer_config": {}}))
    try:
        workers.ActorRolloutRefWorker(config, "actor_rollout")
    except ImportError as error:
        cause = error.__cause__
        if "MindSpeed" not in str(error) or cause is None:
            raise
        found |= {"error": str(error), "module": error.name, "cause": [type(cause).__name__, str(cause)]}
    except AttributeError as error:
        found["built"] = error.name == "get" and error.obj is config
    return {"fault": repatch is None and found.get("built") is True, **found}


if __name__ == "__main__":
    show(main)
