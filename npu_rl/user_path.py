"""A path as a person writes it."""

from __future__ import annotations

import os
from pathlib import Path

from npu_rl.errors import UsageError

_LONGEST, _LONGEST_PART = 4095, 255  # bytes, on Linux and on all its file systems


def user_path(text: str | Path, where: str | None = None) -> Path:
    """The path with `~` and `~USER` as home folders. where: the option or variable it comes from.

    Raises UsageError for a user or home folder that this machine doesn't have, a NUL, and what is too long.
    """
    try:
        if "\0" in str(text):
            raise RuntimeError("It contains a NUL character.")
        path = Path(text).expanduser()
        if len(os.fsencode(path)) > _LONGEST or any(len(os.fsencode(p)) > _LONGEST_PART for p in path.parts):
            raise RuntimeError(
                f"It is longer than {_LONGEST} bytes, or a component is longer than {_LONGEST_PART} bytes."
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
