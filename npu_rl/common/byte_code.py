"""Byte code of runs and activated shells, kept in the user's cache per receipt.

Next to its source, byte code can hide a change of the source, and is copied along with it. So none of a workspace is
read: runs and shells have a prefix of their own, and a run of an unproven tree one that no other shares.

Only the standard library is imported: `sitecustomize` loads this file by its path in each process of a run. `activate`
has the same in shell (`shell_lines`).
"""

from __future__ import annotations

import os
import time

NOWHERE = "/dev/null/npu-rl"  # below a file: Python finds nothing there, writes nothing, and goes on
VARIABLE = "NPU_RL_BYTE_CODE"  # the key, for processes on other hosts
_UNUSED = 30 * 86400  # seconds
# The keys below.
_OWN_NAME = r"[0-9a-f]{32}-(shell|[0-9a-f]{32})"


def home() -> str:
    """Return the folder of all byte code of this user."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not cache.startswith("/"):
        cache = f"{os.environ.get('HOME') or '/dev/null'}/.cache"
    return f"{cache}/npu-rl/byte-code"


def place(key: str) -> str:
    """Return the folder for a key, created if necessary; NOWHERE if it can't be made, or is another user's."""
    path = f"{home()}/{key}"
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        os.utime(path)  # in use: see `remove_unused`
        return path if os.stat(path).st_uid == os.geteuid() else NOWHERE
    except OSError:
        return NOWHERE


def adopt(key: str) -> None:
    """Use the folder for `key` in this process and those it starts."""
    import sys

    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = place(key)


def shell_key(receipt: str) -> str:
    """Return the key of shells that sourced `activate`, from the receipt's digest."""
    return f"{receipt[:32]}-shell"


def run_key(receipt: str, interpreter: str, unproven: str = "") -> str:
    """Return the key of a run; `unproven` is the run's id if its tree differs from its lock."""
    import hashlib

    identity = f"{interpreter}\0{unproven}".encode("utf-8", "surrogateescape")
    return f"{receipt[:32]}-{hashlib.sha256(identity).hexdigest()[:32]}"


def remove_unused() -> None:
    """Remove the folders that no run or shell has used for a month."""
    import re
    import shutil

    try:
        with os.scandir(home()) as entries:
            found = [entry for entry in entries if re.fullmatch(_OWN_NAME, entry.name)]
        for entry in found:
            if entry.stat().st_mtime < time.time() - _UNUSED:
                shutil.rmtree(entry.path, ignore_errors=True)
    except OSError:
        pass


def shell_lines() -> list[str]:
    """Return `place` of `shell_key` as bash and zsh code, which needs NPU_RL_WORKSPACE and exports the variable.

    The receipt's digest is read when the script is sourced: the receipt holds the script's own hash.
    """
    return [
        'case "${XDG_CACHE_HOME:-}" in /*) _npu_rl_home="$XDG_CACHE_HOME" ;;',
        '*) _npu_rl_home="${HOME:-/dev/null}/.cache" ;; esac',
        '_npu_rl_key="$(head -c 43 "$NPU_RL_WORKSPACE/.npu-rl/receipt.json" 2>/dev/null | tail -c 32)"',
        'PYTHONPYCACHEPREFIX="$_npu_rl_home/npu-rl/byte-code/$_npu_rl_key-shell"',
        '(umask 077; mkdir -p "$PYTHONPYCACHEPREFIX" && touch "$PYTHONPYCACHEPREFIX") 2>/dev/null &&',
        f'[ -O "$PYTHONPYCACHEPREFIX" ] || PYTHONPYCACHEPREFIX={NOWHERE}',
        "unset _npu_rl_home _npu_rl_key; export PYTHONPYCACHEPREFIX",
    ]
