"""Words of a generated shell script. A secret is never written into one: the shell that runs it has to have it."""

from __future__ import annotations

import re
import shlex

from npu_rl.masking import Secrets, masked_argument, masked_value

_MISSING = "a secret, which npu-rl does not write: set this variable in the shell"


def export(name: str, value: str, known: Secrets) -> str:
    """The line that sets a variable; a secret is taken from the shell, and the script ends if it is not there."""
    if masked_value(name, known.mask(value)) == value:
        return f"export {name}={shlex.quote(value)}"
    return f'export {name}="${{{name}:?{_MISSING}}}"'


def word(argument: str, known: Secrets) -> str:
    """An argument of a command. For KEY=VALUE with a secret the value is a variable named after the key."""
    if masked_argument(known.mask(argument)) == argument:
        return shlex.quote(argument)
    key, equals, _ = argument.partition("=")
    variable = re.sub(r"[^A-Z0-9]+", "_", key.upper()).strip("_") or "SECRET"
    return f'{shlex.quote(key + equals) if equals else ""}"${{{variable}:?{_MISSING}}}"'
