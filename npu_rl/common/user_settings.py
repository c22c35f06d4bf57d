"""The user's configuration file: `NPU_RL_CONFIG`, else `config.yaml` in the user's configuration folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import parse_yaml, read_file
from npu_rl.common.environment_variables import CONFIG
from npu_rl.common.errors import UsageError
from npu_rl.common.user_path import user_path

_MAXIMUM_SIZE = 1 << 20  # bytes
_SHAPE = (
    "It may have two keys: `rewrite`, a mapping FROM: TO of URL prefixes, and `safe_folders`, a list of absolute "
    'paths, or "*".'
)


@dataclass(frozen=True)
class Configuration:
    """The user's settings: URL rewrites (FROM, TO), and trusted folders of other users ("*" for any)."""

    rewrite: tuple[tuple[str, str], ...] = ()
    safe_folders: tuple[str, ...] = ()


def config_path() -> Path:
    """Return the path of the configuration file, which need not exist."""
    named = os.environ.get(CONFIG.name)
    if named:
        return user_path(named, CONFIG.name)
    import platformdirs

    return Path(platformdirs.user_config_path("npu-rl")) / "config.yaml"


def read_configuration() -> Configuration:
    """Read the configuration file, empty if it does not exist. Raises UsageError if it is not valid."""
    path = config_path()
    if not path.is_file():
        return Configuration()
    data = _parsed(path)
    unknown = sorted(str(key) for key in data if key not in ("rewrite", "safe_folders"))
    if unknown:
        raise _error(path, "is not valid", f"Unknown keys: {', '.join(unknown)}", _SHAPE)
    rewrite = data.get("rewrite") or {}
    if not isinstance(rewrite, dict) or not all(
        isinstance(text, str) and text for pair in rewrite.items() for text in pair
    ):
        raise _error(path, "is not valid", "rewrite must be a mapping of text to text.", _SHAPE)
    return Configuration(tuple(rewrite.items()), _safe_folders(path, data))


def _safe_folders(path: Path, data: dict[Any, Any]) -> tuple[str, ...]:
    given = data.get("safe_folders") or []
    folders = [given] if given == "*" else given
    if not isinstance(folders, list) or not all(_is_absolute_path(entry) for entry in folders):
        raise _error(path, "is not valid", "safe_folders must be a list of absolute paths.", _SHAPE)
    return tuple(folders)


def _is_absolute_path(entry: object) -> bool:
    return isinstance(entry, str) and "\0" not in entry and (entry == "*" or entry.startswith("/"))


def _parsed(path: Path) -> dict[Any, Any]:
    try:
        data = parse_yaml(read_file(path, _MAXIMUM_SIZE))
    except ValueError as error:
        raise _error(path, "is not valid YAML", str(error)) from None
    except OSError as error:
        raise _error(path, "can't be read", error.strerror) from error
    if data is not None and not isinstance(data, dict):
        raise _error(path, "is not valid", "It is not a mapping.", _SHAPE)
    return data or {}


def _error(path: Path, what: str, why: str | None, hint: str | None = None) -> UsageError:
    return UsageError(f"The configuration file {what}", where=str(path), why=why, hint=hint)
