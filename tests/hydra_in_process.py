"""The children that judge a recipe, for tests of other things: Hydra composes in this process, and no trainer is asked.

tests/trainer_code/test_compose_config.py and tests/training/test_trainer_probe.py run the real ones.
"""

from __future__ import annotations

import copy
import functools
import json
import sys
from typing import Any

from npu_rl.common.python_roots import INJECTED
from npu_rl.recipes.judgement import trainer_probe
from npu_rl.recipes.trainer_code import compose_config

ASK = trainer_probe.ask
"""The real question to a trainer's own code."""


def install() -> None:
    """From here on configurations are composed in this process, and trainers refuse nothing."""
    trainer_probe.ask = lambda *_: {"raised": [], "skipped": {}}
    sys.path.append(str(INJECTED))
    try:
        import hydra  # noqa: F401
        import npu_rl_hydra_compose as child
    except ImportError:
        return
    finally:
        sys.path.remove(str(INJECTED))

    def answer(request: Any) -> dict[str, Any]:
        return json.loads(json.dumps(child.main(copy.deepcopy(dict(request))), default=str))

    compose_config.answer = functools.wraps(compose_config.answer)(answer)
