"""Kill this process before its N-th change to the world.

An audit hook sees every file opened for writing, rename, new folder, removal, link and process before it
happens, so no code of the product has to know of this. N = 0 never kills. Each event becomes a line of the log.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = frozenset(
    [
        "os.rename",
        "os.mkdir",
        "os.rmdir",
        "os.remove",
        "os.link",
        "os.symlink",
        "os.truncate",
        "os.chmod",
        "os.utime",
        "shutil.rmtree",
        "shutil.copyfile",
        "shutil.copytree",
        "shutil.move",
        "subprocess.Popen",
        "os.posix_spawn",
        "os.fork",
    ]
)


def watch(number: int, path: str) -> None:
    """Count changes from here on; at the one with this number the process dies as by `kill -9`."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    numbers = itertools.count(1)  # one step even with several threads

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if not isinstance(flags, int) or not flags & _WRITING or path == os.devnull:
                return
        elif event not in _CHANGES:
            return
        mine = next(numbers)
        os.write(log, f"{mine} {event} {arguments!r:.300}\n".encode("utf-8", "backslashreplace"))
        if mine == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
