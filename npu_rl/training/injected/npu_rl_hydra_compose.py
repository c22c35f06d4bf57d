"""Compose the trainer's configuration with its own Hydra, and print it as one line of JSON.

The training interpreter runs it: `python npu_rl_hydra_compose.py '{"folder": ..., "config": ..., "overrides":
[...]}'`. It needs the standard library and hydra. The output is {"config": ..., "unresolved": {key: why}}, or
{"refused": kind, "message": text}, or {"missing": module}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

MARK = "npu-rl-composed:"


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Return the output for one request."""
    try:
        import hydra
        from hydra.errors import HydraException
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
        from yaml import YAMLError
    except ImportError as error:
        return {"missing": error.name or str(error)}
    try:
        with hydra.initialize_config_dir(request["folder"], version_base=None):
            config = hydra.compose(request["config"], overrides=request["overrides"])
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        return {"refused": type(error).__name__, "message": str(error)}
    unresolved: dict[str, str] = {}
    for key in _references(OmegaConf.to_container(config, resolve=False), ()):
        _note_unresolved(config, key, unresolved, OmegaConfBaseException)
    return {"config": _plain(OmegaConf, config, OmegaConfBaseException), "unresolved": unresolved}


def _references(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Yield path and text of values that are references or mandatory ("???")."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _references(item, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _references(item, (*path, index))
    elif isinstance(value, str) and ("${" in value or value == "???"):
        yield path, value


def _note_unresolved(config: Any, leaf: Any, unresolved: dict[str, str], fault: type[Exception]) -> None:
    """Record why a value can't be resolved, except for environment variables, which nodes may have."""
    path, text = leaf
    node = config
    try:
        for name in path:
            node = node[name]
    except fault as error:
        if "oc.env" not in text:
            unresolved[".".join(str(part) for part in path)] = str(error).splitlines()[0]


def _plain(omegaconf: Any, node: Any, fault: type[Exception]) -> Any:
    """Return plain data, with references resolved where possible."""
    try:
        return omegaconf.to_container(node, resolve=True)
    except fault:
        pass
    if omegaconf.is_dict(node):
        return {name: _entry(omegaconf, node, name, fault) for name in node}
    return [_entry(omegaconf, node, index, fault) for index in range(len(node))]


def _entry(omegaconf: Any, node: Any, name: Any, fault: type[Exception]) -> Any:
    try:
        value = node[name]
    except fault:
        return omegaconf.to_container(node, resolve=False)[name]
    return _plain(omegaconf, value, fault) if omegaconf.is_config(value) else value


if __name__ == "__main__":
    answer = main(json.loads(sys.argv[1]))
    print(MARK + json.dumps(answer, default=str))
