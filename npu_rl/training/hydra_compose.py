"""The trainer's configuration as its own Hydra composes it, in the training interpreter."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from npu_rl.errors import HostError, RecipeError
from npu_rl.standins import INJECTED

Run = Callable[[Sequence[str], Mapping[str, str]], tuple[int, str, str]]
"""Runs an argument list with an environment: (exit code, stdout, stderr)."""

_CHILD = INJECTED / "npu_rl_rehearsal_compose.py"
_MARK = "npu-rl-composed:"
_NOISE = ("full_key:", "object_type=", "reference_type=", "See https://hydra.cc")


@dataclass(frozen=True)
class ComposedConfig:
    """config: plain data, references to other keys resolved. unresolved: key -> why it has no value yet.

    A value of the environment (`oc.env`) that isn't set here stays as text, and is not listed.
    """

    config: Mapping[str, Any]
    unresolved: Mapping[str, str]


def compose(
    overrides: Sequence[str], folder: Path, config: str, python: str, env: Mapping[str, str], run: Run
) -> ComposedConfig:
    """Compose `config` from the files in `folder` with `overrides` (`key=value`, `+key=value`).

    python: the training interpreter. env: its environment. Raises RecipeError with Hydra's message if it refuses
    one of them, HostError if the interpreter has no Hydra or does not run.
    """
    request = {"folder": str(folder), "config": config, "overrides": list(overrides)}
    code, out, err = run([python, "-B", str(_CHILD), json.dumps(request)], env)
    answers = [line[len(_MARK) :] for line in out.splitlines() if line.startswith(_MARK)]
    if code != 0 or not answers:
        raise HostError(
            "The training interpreter could not compose the configuration",
            where=python,
            why="\n".join((err.strip() or out.strip() or f"exit code {code}").splitlines()[-8:]),
        )
    answer = json.loads(answers[-1])
    if "missing" in answer:
        raise HostError(
            f"The training interpreter has no {answer['missing']}",
            where=python,
            hint="name an interpreter that has the manifest's requirements: --python PATH",
        )
    if "refused" in answer:
        _refuse(answer["refused"], answer["message"], overrides, folder / config)
    return ComposedConfig(answer["config"], answer["unresolved"])


def _refuse(kind: str, message: str, overrides: Sequence[str], config: Path) -> NoReturn:
    """Hydra's message without what only its authors can use."""
    lines = [line.strip() for line in message.splitlines()]
    kept = [line for line in lines if line and not line.startswith(_NOISE)]
    guilty = next((item for item in overrides if _named(item, message)), None)
    hint = None
    if "is not in struct" in message and guilty:
        hint = "no configuration file has this key; `npu-rl recipes check` names the nearest right one"
    raise RecipeError(
        "The trainer's Hydra refuses the recipe",
        where=guilty or str(config),
        why="\n".join(kept) or kind,
        hint=hint,
    )


def _named(override: str, message: str) -> bool:
    key = override.partition("=")[0].lstrip("+~")
    return override in message or any(
        text in message for text in (f"'{key}'", f"'{override}'", f"'+{key}'", f"'++{key}'")
    )
