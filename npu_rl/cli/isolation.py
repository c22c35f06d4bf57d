"""Keep what PYTHONPATH and the current folder add to sys.path out of npu-rl's own imports.

In an activated workspace PYTHONPATH names the tree that is to be judged. Python is already running and may have
imported a stray file of it, such as sitecustomize.py. Starting again leaves a file behind that only shadows a module,
but not one that is written to deceive, since it has run.
"""

from __future__ import annotations

import os
import site
import sys


def isolate() -> None:
    """Remove those entries, and start again with `python -E` if a module was already imported from one of them.

    Imports nothing that Python has not loaded at its start: it could be a stray file.
    """
    home = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    try:
        here = os.getcwd()
    except OSError:  # it was removed; nothing can be imported from it
        here = ""
    given = [
        os.path.normpath(os.path.join(here, p)) for p in os.environ.get("PYTHONPATH", "").split(":") if p
    ]
    strays = {here, *given} - {home, "", *site.getsitepackages(), site.getusersitepackages()}
    if sys.executable and any(map(_has_loaded_from, strays)):
        options = ["-E", *(["-B"] if sys.dont_write_bytecode else [])]
        os.execv(sys.executable, [sys.executable, *options, f"{home}/npu_rl/__main__.py", *sys.argv[1:]])
    sys.path[:] = [entry for entry in sys.path if entry == home or entry not in ("", *strays)]


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
