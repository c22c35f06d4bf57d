"""Values as Hydra's command line reads them.

Source: Hydra 1.3, "Basic Override syntax" (hydra.cc/docs/1.3/advanced/override_grammar/basic).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_PLAIN = re.compile(r"[A-Za-z_/.][A-Za-z0-9_/.:+@%-]*")
_READ_AS_OTHER = re.compile(r"(?i)true|false|null|[+-]?(nan|inf)|[+-]?[0-9._]+(e[+-]?[0-9_]+)?")


def argument(key: str, value: Any, known: bool) -> str:
    """One argument: `key=value`, or `+key=value` for a key the trainer's configuration files don't have."""
    return f"{'' if known else '+'}{key}={hydra_text(value)}"


def hydra_text(value: Any) -> str:
    """A value such that Hydra reads back the same value, of the same type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{hydra_text(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(hydra_text(item) for item in value) + "]"
    return _text(str(value))


def _text(value: str) -> str:
    if _PLAIN.fullmatch(value) and not _READ_AS_OTHER.fullmatch(value):
        return value
    # A backslash before a quote is the only escape; others stay as they are, so a run before a quote doubles.
    quoted = re.sub(r"(\\*)'", lambda match: match[1] * 2 + r"\'", value)
    trailing = len(quoted) - len(quoted.rstrip("\\"))
    return "'" + quoted + "\\" * trailing + "'"
