"""Composition of the trainer's configuration with its own Hydra, in the training interpreter."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from npu_rl.common.errors import HostError, RecipeError
from npu_rl.common.python_roots import INJECTED

RunCommand = Callable[[Sequence[str], Mapping[str, str]], tuple[int, str, str]]
"""Run an argument list with an environment; return exit code, stdout and stderr."""

_CHILD = INJECTED / "npu_rl_hydra_compose.py"
_MARK = "npu-rl-composed:"
_NOISE = ("full_key:", "object_type=", "reference_type=", "See https://hydra.cc")


@dataclass(frozen=True)
class ComposedConfig:
    """A composed configuration.

    Attributes:
        config: Plain data, with references to other keys resolved. References to environment variables that are not
            set (`oc.env`) stay as text.
        unresolved: Keys without a value yet, and why.
    """

    config: Mapping[str, Any]
    unresolved: Mapping[str, str]


def compose(
    overrides: Sequence[str], folder: Path, config: str, python: str, env: Mapping[str, str], run: RunCommand
) -> ComposedConfig:
    """Compose a configuration with the trainer's Hydra.

    Args:
        overrides: Arguments such as `key=value` and `+key=value`.
        config: Name of the configuration, whose files are in `folder`.

    Raises:
        RecipeError: If Hydra refuses an override, with its message.
        HostError: If the interpreter can't be run or has no Hydra.
    """
    request = {"folder": str(folder), "config": config, "overrides": list(overrides)}
    code, out, err = run([python, "-B", str(_CHILD), json.dumps(request)], env)
    results = [line[len(_MARK) :] for line in out.splitlines() if line.startswith(_MARK)]
    if code != 0 or not results:
        raise HostError(
            "The training interpreter could not compose the configuration",
            where=python,
            why="\n".join((err.strip() or out.strip() or f"exit code {code}").splitlines()[-8:]),
        )
    result = json.loads(results[-1])
    if "missing" in result:
        raise HostError(
            f"The training interpreter has no {result['missing']}",
            where=python,
            hint="Install the manifest's packages with `npu-rl setup --install`,\n"
            "or name an interpreter that has them: --python PATH",
        )
    if "refused" in result:
        _raise_refusal(result["refused"], result["message"], overrides, folder / config)
    return ComposedConfig(result["config"], result["unresolved"])


def _raise_refusal(kind: str, message: str, overrides: Sequence[str], config: Path) -> NoReturn:
    """Raise RecipeError with Hydra's message, without the lines about its internals."""
    lines = [line.strip() for line in message.splitlines()]
    shown = [line for line in lines if line and not line.startswith(_NOISE)]
    guilty = next((item for item in overrides if _is_named_in(item, message)), None)
    hint = None
    if "is not in struct" in message and guilty:
        hint = "no configuration file has this key; `npu-rl recipes check` names the nearest right one"
    raise RecipeError(
        "The trainer's Hydra refuses the recipe",
        where=guilty or str(config),
        why="\n".join(shown) or kind,
        hint=hint,
    )


def _is_named_in(override: str, message: str) -> bool:
    key = override.partition("=")[0].lstrip("+~")
    return override in message or any(
        text in message for text in (f"'{key}'", f"'{override}'", f"'+{key}'", f"'++{key}'")
    )
