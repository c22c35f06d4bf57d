"""Compose the trainer's configuration with Hydra, and print it as one line of JSON.

`python npu_rl_hydra_compose.py '{"folder": ..., "config": ..., "overrides": [...]}'` runs in any interpreter that has
hydra: the training interpreter for what a run gets, npu-rl's own for judging a recipe. The output is {"config": ...},
or {"refused": kind, "message": text}, or {"missing": module}. With "code", the folder of the tree, it is {"defaults":
..., "choices": {group: option}, "search_path": [...], "refused": {key: why}}: the configuration without a recipe's
settings, references as text, and which of "settings", [[key, text], ...], Hydra refuses.
"""

from __future__ import annotations

import gc
import json
import re
import sys
from pathlib import Path
from typing import Any

MARK = "npu-rl-composed:"
_NO_GROUP = re.compile(r"Could not override '([^']+)'")


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Return the output for one request."""
    try:
        from hydra.errors import HydraException
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
        from yaml import YAMLError
    except ImportError as error:
        return {"missing": error.name or str(error)}
    faults = HydraException, OmegaConfBaseException, YAMLError
    try:
        if "code" in request:
            return _defaults(request, faults)
        config = composed(request["folder"], request["config"], request["overrides"])
    except faults as error:
        return {"refused": type(error).__name__, "message": str(error)}
    return {"config": _plain(OmegaConf, config, OmegaConfBaseException)}


def composed(folder: str, config: str, overrides: list[str], whole: bool = False) -> Any:
    """Return a configuration; `whole`: with Hydra's own."""
    import hydra

    with hydra.initialize_config_dir(folder, version_base=None):
        return hydra.compose(config, overrides=overrides, return_hydra_config=whole)


def _defaults(request: dict[str, Any], faults: tuple[type[Exception], ...]) -> dict[str, Any]:
    """Return the configuration without the recipe's settings, and those that Hydra refuses."""
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    folder, name = request["folder"], request["config"]
    declared = _search_path(folder, name)
    places = ",".join(f"'{_place(one, request['code'])}'" for one in declared)
    overrides = [f"hydra.searchpath=[{places}]"] if places else []
    # to compose twice takes twice the time, so a group that no folder has is not tried
    folders = [folder, *(_place(one, request["code"]).removeprefix("file://") for one in declared)]
    groups = {
        key: one for key, one in request["groups"].items() if any(Path(at, key).is_dir() for at in folders)
    }
    while True:
        chosen = [f"{group}={'null' if option is None else option}" for group, option in groups.items()]
        try:
            config = composed(folder, name, [*overrides, *chosen], whole=True)
        except HydraException as error:
            absent = _NO_GROUP.search(str(error))
            if absent is None or groups.pop(absent[1], groups) is groups:
                raise
        else:
            break
    choices = {key: one for key, one in config.hydra.runtime.choices.items() if not key.startswith("hydra/")}
    OmegaConf.set_struct(config, False)
    del config["hydra"]
    raw = OmegaConf.to_container(config, resolve=False)
    refused: dict[str, str] = {}
    for key, text in request["settings"]:
        if key not in groups and not key.startswith("hydra."):
            try:
                _set(config, f"{key}={text}")
            except faults as error:
                refused.setdefault(key, str(error))
    return {"defaults": raw, "choices": choices, "search_path": declared, "refused": refused}


def _set(config: Any, override: str) -> None:
    """Set one key as Hydra does (_apply_overrides_to_config, hydra/_internal/config_loader_impl.py@v1.3.2)."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    (parsed,) = OverridesParser.create().parse_overrides([override])
    OmegaConf.update(config, parsed.key_or_group, parsed.value(), merge=True, force_add=True)


def _search_path(folder: str, name: str) -> list[str]:
    """Return the folders that the first file's `hydra.searchpath` adds."""
    import yaml

    try:
        own = yaml.safe_load(Path(folder, f"{name}.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []  # which Hydra reports
    node = own.get("hydra") if isinstance(own, dict) else None
    places = node.get("searchpath") if isinstance(node, dict) else None
    return list(map(str, places)) if isinstance(places, list) else []


def _place(place: str, code: str) -> str:
    """Return a folder of the search path in the tree: `pkg://` would import the trainer's package."""
    kind, separator, rest = place.partition("://")
    path = rest.replace(".", "/") if kind == "pkg" else rest if separator else place
    return f"file://{Path(code, path)}"


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
    gc.disable()  # a tenth of the time
    answer = main(json.loads(sys.argv[1]))
    print(MARK + json.dumps(answer, default=str))
