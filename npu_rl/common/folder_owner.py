"""The owner's check: a folder of another user is refused unless it is listed, as with git's safe.directory.

Such a folder determines what a command reads, prints and runs, and anybody can put one into a shared place like /tmp.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from npu_rl.common.errors import HostError


def require_own(noun: str, folder: Path, *parts: Path, hint: str = "") -> None:
    """Raise HostError if a folder is another user's and `safe_folders` does not list it; a missing one is no error.

    Under sudo, the calling user's folders count as own.

    Args:
        noun: What the folder is, such as "workspace".
        parts: Paths in it that have to be own, too.
        hint: Another way out, as a line.

    Raises:
        OSError: If one of the paths can't be looked at.
    """
    owner = _foreign_owner(folder, *parts)
    if owner is None:
        return
    from npu_rl.common.user_settings import config_path, read_configuration  # few commands meet such a folder

    root = os.path.realpath(folder)
    safe = read_configuration().safe_folders
    if "*" in safe or root in map(os.path.realpath, safe):
        return
    line = f"safe_folders: {json.dumps([*safe, root], ensure_ascii=False)}"
    raise HostError(
        f"The {noun} {root} belongs to another user",
        why=f"Its owner is {_user_name(owner)}, and this command runs as {_user_name(os.geteuid())}. "
        "npu-rl would use and run what its owner put into it.",
        hint="\n".join(
            (*([hint] if hint else []), f"If you trust it, add this line to {config_path()}:", line)
        ),
    )


def _foreign_owner(*paths: Path) -> int | None:
    ours = {os.geteuid()}
    caller = os.environ.get("SUDO_UID", "")
    if os.geteuid() == 0 and caller.isascii() and caller.isdigit():
        ours.add(int(caller))
    for path in paths:
        try:
            owner = path.stat().st_uid
        except FileNotFoundError:
            continue
        if owner not in ours:
            return owner
    return None


def _user_name(number: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(number).pw_name} (uid {number})"
    except KeyError:
        return f"uid {number}"
