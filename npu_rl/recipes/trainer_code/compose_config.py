"""Composition of the trainer's configuration by Hydra, in a child process of npu-rl's own interpreter.

Nothing of the tree is imported. The training interpreter may have another antlr than Hydra needs.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from npu_rl.common.errors import HostError
from npu_rl.common.process import run_quietly
from npu_rl.common.python_roots import INJECTED
from npu_rl.recipes.trainer_code.config_location import ConfigLocation
from npu_rl.recipes.trainer_code.config_tree import ConfigEntry, ConfigFault, ConfigTree

_CHILD = INJECTED / "npu_rl_hydra_compose.py"
_MARK = "npu-rl-composed:"
_SECONDS = 60.0
_NOISE = (
    "full_key:",
    "object_type=",
    "reference_type=",
    "See https://hydra.cc",
    "Set the environment variable",
    "Config search path",
    "provider=",
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def compose_config(
    code: Path, location: ConfigLocation, settings: Iterable[tuple[str, str]] = ()
) -> ConfigTree:
    """Compose a configuration from the files of a code folder.

    Args:
        settings: Keys and values, as Hydra reads them; `ConfigTree.refused` has those that Hydra refuses.

    Raises:
        ConfigFault: If the module or folder is missing, or Hydra can't compose the files.
        HostError: If npu-rl's own interpreter can't run Hydra.
    """
    folder = location.find_folder(code)
    name = location.config.removesuffix(".yaml").removesuffix(".yml")
    request = {
        "code": str(code.resolve()),
        "folder": str(folder),
        "config": name,
        "groups": dict(location.choices),
        "settings": list(settings),
    }
    given = answer(request)
    if "message" in given:
        raise ConfigFault(hydra_message(given["message"]), _name(folder / f"{name}.yaml", code))
    entries = dict(_flatten(given["defaults"], ""))
    refused = {key: hydra_message(why) for key, why in given["refused"].items()}
    return ConfigTree(entries, tuple(given["search_path"]), given["choices"], refused)


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the child's answer. Raises HostError if it gives none."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = run_quietly(
        [sys.executable, "-I", "-B", str(_CHILD), json.dumps(request)], environment, Path(os.sep), _SECONDS
    )
    answers = [line[len(_MARK) :] for line in done.stdout.splitlines() if line.startswith(_MARK)]
    found: dict[str, Any] = json.loads(answers[-1]) if answers else {}
    if not found or "missing" in found:
        lacks = f"It has no {found['missing']}." if found else ""
        raise HostError(
            "npu-rl's own interpreter could not compose the trainer's configuration",
            where=sys.executable,
            why=lacks or "\n".join((done.stderr.strip() or f"exit status {done.code}").splitlines()[-8:]),
            hint="Install npu-rl again: hydra-core is one of its requirements.",
        )
    return found


def hydra_message(message: str) -> str:
    """Return Hydra's message on one line, without the lines about its internals."""
    lines = [line.strip() for line in _COLOUR.sub("", message).splitlines()]
    return "; ".join(line for line in lines if line and not line.startswith(_NOISE))


def _flatten(branch: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, ConfigEntry]]:
    for name, value in branch.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            yield key, ConfigEntry(None, True)
            yield from _flatten(value, f"{key}.")
        else:
            yield key, ConfigEntry(value, False)


def _name(path: Path, code: Path) -> str:
    return path.relative_to(code).as_posix() if path.is_relative_to(code) else str(path)
