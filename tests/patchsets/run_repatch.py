"""Import verl's Megatron workers and print what they have for MindSpeed's `repatch`, or the error that stopped it.

On PYTHONPATH: the stand-ins for a CPU, and a tree with verl and Megatron, and with MindSpeed or without. The output is
one line of JSON. An error that is not about MindSpeed ends this.
"""

from __future__ import annotations

import json
from typing import Any


def main() -> dict[str, Any]:
    try:
        import verl.workers.megatron_workers as workers
    except ImportError as error:
        cause = error.__cause__
        if "MindSpeed" not in str(error) or cause is None:
            raise
        return {"error": str(error), "module": error.name, "cause": [type(cause).__name__, str(cause)]}
    repatch = workers.repatch
    return {"repatch": repatch and f"{repatch.__module__}.{repatch.__name__}"}


if __name__ == "__main__":
    result = main()
    print(json.dumps(result))
