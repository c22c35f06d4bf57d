"""Byte code of runs and activated shells, kept outside the workspace per user, host and receipt.

Next to its source, byte code can hide a change of the source; inside the workspace, it is copied along with it. So it
is kept in the user's cache, and no other byte code of a workspace is read. Interpreters share a folder, with their tag
in each file name, as everywhere in Python.

Python treats byte code with its source's size and time, in whole seconds, as current: an edit that was run and undone
within a second leaves stale byte code. So a run's key includes the `stat` results of every file from when the tree was
proven, and verify empties a shell's folder if any file was touched since.

Only the standard library is imported: `sitecustomize` loads this file by its path in each process of a run. `activate`
has the same in shell (`shell_lines`).
"""

from __future__ import annotations

import os
import stat
import sys
import time

TYPE_CHECKING = False  # typing itself is not imported at every start of Python
if TYPE_CHECKING:
    from collections.abc import Callable

NOWHERE = "/dev/null/npu-rl"  # below a file: Python finds nothing there, writes nothing, and goes on
VARIABLE = "NPU_RL_BYTE_CODE"  # the key, for processes on other hosts
UNUSED_DAYS = 30

_STATE = ".npu-rl-state"
# The keys below, and that of trainer_code/answer_cache.py.
_OWN_NAME = r"[0-9a-f]{32}-(shell|answers|[0-9a-f]{32})(\.gone-[0-9a-f]{12})?"


def home() -> str:
    """Return the folder of all byte code of this user."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not cache.startswith("/"):
        cache = f"{os.environ.get('HOME') or '/dev/null'}/.cache"
    return f"{cache}/npu-rl/byte-code"


def place(key: str) -> str:
    """Return the folder for `key` on this host, created if necessary; NOWHERE if it can't be private to this user."""
    path = _path(key)
    try:
        os.makedirs(home(), mode=0o700, exist_ok=True)
        if not path or not _is_private(home()):
            return NOWHERE
        for folder in (os.path.dirname(path), path):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        os.utime(path)  # in use: see `remove_unused`
    except OSError:
        return NOWHERE
    return path


def adopt(key: str) -> None:
    """Use the folder for `key` in this process and those it starts."""
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = place(key)


def shell_key(receipt: str) -> str:
    """Return the key of shells that sourced `activate`, from the receipt's digest."""
    return f"{receipt[:32]}-shell"


def run_key(receipt: str, interpreter: str, state: str) -> str:
    """Return the key of a run; `state` identifies the tree's files as they were proven."""
    import hashlib

    identity = f"{interpreter}\0{state}".encode("utf-8", "surrogateescape")
    return f"{receipt[:32]}-{hashlib.sha256(identity).hexdigest()[:32]}"


def keep_only(key: str, state: Callable[[], str]) -> None:
    """Empty the folder for `key` unless its byte code belongs to files in this `state`; errors are ignored.

    `state` is called only if the folder exists.
    """
    path = _path(key)
    if not path or not os.path.isdir(path) or not _is_private(home()):
        return
    mark, now = f"{path}/{_STATE}", state()
    try:
        with open(mark, encoding="utf-8") as file:
            if file.read() == now:
                return
    except (OSError, ValueError):
        pass  # no record of a state yet
    try:
        _remove(path)
        os.makedirs(path, mode=0o700)
        with open(mark, "w", encoding="utf-8") as file:
            file.write(now)
    except OSError:
        pass


def remove_unused(days: float = UNUSED_DAYS) -> None:
    """Remove the folders, of every host, that no run or shell has used for `days`."""
    import re

    is_own = re.compile(_OWN_NAME).fullmatch
    limit = time.time() - days * 86400
    if not _is_private(home()):
        return
    try:
        with os.scandir(home()) as hosts:
            folders = [entry.path for entry in hosts if entry.is_dir(follow_symlinks=False)]
        for folder in folders:
            with os.scandir(folder) as entries:
                old = [
                    e.path
                    for e in entries
                    if e.is_dir(follow_symlinks=False) and is_own(e.name) and e.stat().st_mtime < limit
                ]
            for path in old:
                _remove(path)
    except OSError:
        pass


def _path(key: str) -> str | None:
    host = os.uname().nodename
    named = host.strip(".") and "/" not in host
    return f"{home()}/{host}/{key}" if named and key.isascii() and key.replace("-", "").isalnum() else None


def _is_private(folder: str) -> bool:
    """Return whether only this user can write into the folder; everything below it is created with mode 700."""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _remove(path: str) -> None:
    """Rename a folder, so that no process reads it during the removal, and remove it."""
    import shutil

    gone = f"{path}.gone-{os.urandom(6).hex()}"
    os.rename(path, gone)
    shutil.rmtree(gone, ignore_errors=True)


def shell_lines() -> list[str]:
    """Return `place` of `shell_key` as bash and zsh code, which needs NPU_RL_WORKSPACE and exports the variable.

    The receipt's digest is read when the script is sourced: the receipt holds the script's own hash.
    """
    return [
        '_npu_rl_home="${HOME:-/dev/null}/.cache"',
        'case "${XDG_CACHE_HOME:-}" in /*) _npu_rl_home="$XDG_CACHE_HOME" ;; esac',
        '_npu_rl_home="$_npu_rl_home/npu-rl/byte-code"',
        '_npu_rl_key="$(head -c 43 "$NPU_RL_WORKSPACE/.npu-rl/receipt.json" 2>/dev/null | tail -c 32)"',
        'case "$_npu_rl_key" in *[!0-9a-f]*) _npu_rl_key= ;; esac',
        'case "$_npu_rl_home" in "$NPU_RL_WORKSPACE"/*) _npu_rl_key= ;; esac',
        'PYTHONPYCACHEPREFIX="$(exec 2>/dev/null; umask 077',
        '[ ${#_npu_rl_key} -eq 32 ] && mkdir -p "$_npu_rl_home" &&',
        "# only where no other user can write",
        'found="$(find "$_npu_rl_home" -prune -type d -user "$(id -u)" ! -perm -0020 ! -perm -0002)" &&',
        '[ "$found" = "$_npu_rl_home" ] && folder="$_npu_rl_home/$(uname -n)/$_npu_rl_key-shell" &&',
        f'mkdir -p "$folder" && touch "$folder" && printf %s "$folder")" || PYTHONPYCACHEPREFIX={NOWHERE}',
        "unset _npu_rl_home _npu_rl_key; export PYTHONPYCACHEPREFIX",
    ]
