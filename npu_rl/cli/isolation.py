"""`python -m npu_rl`: continue without the entries that PYTHONPATH and the current folder add to sys.path.

The installed command does not need this (npu_rl/cli/launcher). Here Python is already running, and may have imported a
stray file of the tree to be judged. Starting again leaves a file that only shadows a module behind, but not a file that
is written to deceive, since it has run.
"""

from __future__ import annotations

import os
import sys


def isolate() -> None:
    """Start again with `python -E` if Python could have imported, or did import, a stray file.

    It starts again if PYTHONPATH names a folder other than our own, or a module came from the current folder. Otherwise
    only that folder is removed from sys.path.

    Imports nothing that Python has not loaded at its start: it could be a stray file.
    """
    home = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    try:
        here = os.getcwd()
    except OSError:  # it was removed; nothing can be imported from it
        here = ""
    given = {
        os.path.normpath(os.path.join(here, p)) for p in os.environ.get("PYTHONPATH", "").split(":") if p
    }
    if sys.executable and (given - {home} or (here != home and _has_loaded_from(here))):
        options = ["-E", *(["-B"] if sys.dont_write_bytecode else [])]
        os.execv(sys.executable, [sys.executable, *options, f"{home}/npu_rl/__main__.py", *sys.argv[1:]])
    sys.path[:] = [entry for entry in sys.path if entry == home or entry not in ("", here)]


def _has_loaded_from(folder: str) -> bool:
    """Return whether a top-level module was found in this folder of sys.path."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and "." not in name and name != "__main__":
            place = os.path.dirname(file)
            if os.path.basename(file).startswith("__init__."):
                place = os.path.dirname(place)
            if place == folder:
                return True
    return False
