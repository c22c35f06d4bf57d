"""Composition of the trainer's configuration with its own Hydra, in the training interpreter."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from npu_rl.common.errors import HostError, RecipeError
from npu_rl.common.process import run_quietly
from npu_rl.common.python_roots import INJECTED
from npu_rl.recipes.trainer_code.compose_config import hydra_message

_CHILD = INJECTED / "npu_rl_hydra_compose.py"
_MARK = "npu-rl-composed:"
_SECONDS = 180.0


def compose(
    overrides: Sequence[str], folder: Path, config: str, python: str, env: Mapping[str, str]
) -> dict[str, Any]:
    """Compose a configuration with the trainer's Hydra, as plain data.

    References to other keys are resolved; those that can't be, such as to environment variables of the nodes
    (`oc.env`), stay as text.

    Args:
        overrides: Arguments such as `key=value` and `+key=value`.
        config: Name of the configuration, whose files are in `folder`.

    Raises:
        RecipeError: If Hydra refuses an override, with its message.
        HostError: If the interpreter can't be run or has no Hydra.
    """
    request = json.dumps({"folder": str(folder), "config": config, "overrides": list(overrides)})
    done = run_quietly([python, "-B", str(_CHILD), request], env, Path(os.sep), _SECONDS)
    results = [line[len(_MARK) :] for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if done.code != 0 or not results:
        said = done.stderr.strip() or done.stdout.strip() or f"exit code {done.code}"
        what = "The training interpreter could not compose the configuration"
        raise HostError(what, where=python, why="\n".join(said.splitlines()[-8:]))
    result = json.loads(results[-1])
    if "missing" in result:
        raise HostError(
            f"The training interpreter has no {result['missing']}",
            where=python,
            hint="Install the manifest's packages with `npu-rl setup --install`,\n"
            "or name an interpreter that has them: --python PATH",
        )
    if "refused" in result:
        message = result["message"]
        guilty = next((item for item in overrides if _is_named_in(item, message)), None)
        raise RecipeError(
            "The trainer's Hydra refuses the recipe",
            where=guilty or str(folder / config),
            why=hydra_message(message) or result["refused"],
        )
    return dict(result["config"])


def _is_named_in(override: str, message: str) -> bool:
    key = override.partition("=")[0].lstrip("+~")
    return override in message or any(f"'{plus}{key}'" in message for plus in ("", "+", "++"))
