"""Entry point of the children. Python puts this folder first on sys.path, which is undone here."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

LEVELS = {
    "imports": "imports",
    "groups": "layout_groups",
    "model": "layout_model",
    "sources": "module_sources",
}


def main() -> int:
    """Run the level named on the command line, and return the exit status."""
    level, job, result = sys.argv[1:]
    sys.argv = sys.argv[:1]  # libraries that parse it, such as MindSpeed, must not see our arguments
    folder = Path(__file__).resolve().parent
    # sys.path becomes what the environment sets. Our own modules are found through the package.
    sys.path[0] = str(folder.parent)
    module = importlib.import_module(f"{folder.name}.{LEVELS[level]}")
    del sys.path[0]
    work = json.loads(Path(job).read_text(encoding="utf-8"))
    with Path(result).open("w", encoding="utf-8") as stream:
        for line in module.run(work):
            stream.write(json.dumps(line) + "\n")
            stream.flush()
    return 0


raise SystemExit(main())
