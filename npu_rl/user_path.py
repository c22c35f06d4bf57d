"""A path as a person writes it."""

from __future__ import annotations

import os
from pathlib import Path

from npu_rl.errors import UsageError

_MAXIMUM_PATH, _MAXIMUM_COMPONENT = 4095, 255  # bytes, on Linux and on all its file systems


def user_path(text: str | Path, where: str | None = None) -> Path:
    """The path with `~` and `~USER` as home folders. where: the option or variable it comes from.

    Raises UsageError for a user or home folder that this machine doesn't have, a NUL, and what is too long.
    """
    try:
        if "\0" in str(text):
            raise RuntimeError("It contains a NUL character.")
        path = Path(text).expanduser()
        if len(os.fsencode(path)) > _MAXIMUM_PATH or any(
            len(os.fsencode(p)) > _MAXIMUM_COMPONENT for p in path.parts
        ):
            raise RuntimeError(
                f"It is longer than {_MAXIMUM_PATH} bytes, or a component is longer than {_MAXIMUM_COMPONENT} bytes."
            )
        return path
    except (RuntimeError, ValueError) as error:
        shown = ascii(str(text))
        raise UsageError(
            f"Invalid path {shown[:80]}…" if len(shown) > 80 else f"Invalid path {shown}",
            where=where,
            why=str(error),
            hint="For a file whose name begins with ~, write ./~name.",
        ) from error
