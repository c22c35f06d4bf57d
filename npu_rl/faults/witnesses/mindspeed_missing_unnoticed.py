"""Import verl's Megatron workers and build one, and print what they have for MindSpeed's `repatch`, or the error.

On PYTHONPATH: the stand-ins for a CPU, and a tree with verl and Megatron, and with MindSpeed or without. The output is
one line of JSON: {"repatch": its name in the imported module, or null, "built": whether the worker came past it}, and
where it did not, "error", "module" and "cause" of what it raised. An error that is not about MindSpeed ends this.
"""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any


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
    return found


if __name__ == "__main__":
    result = main()
    print(json.dumps(result))
