"""Paths as the user writes them: relative, or with `~`."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from npu_rl.common.errors import UsageError


def user_path(text: str | Path, where: str | None = None) -> Path:
    """Expand `~` and `~USER` in a path.

    Args:
        where: The option or variable it comes from.

    Raises:
        UsageError: For an unknown user or home folder, and a NUL.
    """
    try:
        if "\0" in str(text):
            raise RuntimeError("It contains a NUL character.")
        return Path(text).expanduser()
    except (RuntimeError, ValueError) as error:
        shown = ascii(str(text))
        raise UsageError(
            f"Invalid path {shown[:80]}…" if len(shown) > 80 else f"Invalid path {shown}",
            where=where,
            why=str(error),
            hint="For a file whose name begins with ~, write ./~name.",
        ) from error


def existing_folder(text: str | Path, hint: str) -> Path:
    """Return the absolute path of a folder on the command line.

    Args:
        text: The path as it was typed.
        hint: What to do if it does not exist.

    Raises:
        UsageError: As `user_path`, and if it is not a folder. One that can't be looked at is returned.
    """
    path = user_path(text).absolute()
    with contextlib.suppress(PermissionError):  # what reads the folder reports it
        if not path.is_dir():
            what = "The path is not a folder" if path.exists() else "The folder does not exist"
            raise UsageError(what, where=str(path), hint=hint)
    return path


def existing_file(text: str | Path, option: str) -> Path:
    """Return the path of a regular file that an option names. Raises UsageError as `user_path`, and for no file."""
    path = user_path(text, option)
    with contextlib.suppress(PermissionError):  # what reads the file reports it
        if not path.is_file():
            what = "The path is not a file" if path.exists() else "No such file"
            raise UsageError(what, where=f"{option} {path}", hint="Pass the path of one file.")
    return path


def program_path(text: str) -> str:
    """Return the absolute path of a program given as a path; a bare name stays, for PATH.

    Programs are started in other folders than the user's. Links are not followed: the interpreter of a virtual
    environment is one, and finds its packages by its own place.

    Raises:
        UsageError: As `user_path`.
    """
    if os.sep not in text and not text.startswith("~"):
        return text
    return os.path.abspath(user_path(text, "--python"))  # noqa: PTH100  Path.resolve would follow the link
