"""Kill this process when it is about to move a package: between two renames of an installation."""

from __future__ import annotations

import itertools
import os
import signal
import sys


def watch(name: str, number: int) -> None:
    """Die as by `kill -9` before the rename with this number of what is called `name`."""
    numbers = itertools.count(1)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "os.rename" and arguments[0] == name and next(numbers) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
