"""Entry of the children. Python was given this folder, so it stands first on sys.path: that is undone here."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

LEVELS = {"imports": "imports", "groups": "layout_groups", "model": "layout_model"}


def main() -> int:
    """Run the level named on the command line. Returns the exit status."""
    level, job, result = sys.argv[1:]
    sys.argv = sys.argv[:1]  # libraries that parse it (MindSpeed does) must find nothing of ours
    folder = Path(__file__).resolve().parent
    # The module search path becomes what the environment says. Our own modules are found through the package.
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
