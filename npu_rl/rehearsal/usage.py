"""What really ran: the counts that stand-ins and hooks leave in an attempt's `usage` folder."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

# The node's name stands before the process's number, and a number more after it; older records have neither.
_FILE = re.compile(r"(npu_rl_runtime|npu_rl_standins\w*|torch_npu)-(?:.+-)?[0-9]+(?:\.[0-9]+)?\.txt")
_LINE = re.compile(r" *([0-9]+) (\S.*)")


def read_usage(folder: Path) -> tuple[Counter[str], Counter[str]]:
    """Over all processes: how often each adaptation's hook ran, and how often each stand-in was used."""
    hooks: Counter[str] = Counter()
    standins: Counter[str] = Counter()
    for path in sorted(folder.glob("*.txt")):
        found = _FILE.fullmatch(path.name)
        if not found:
            continue
        into = hooks if found[1] == "npu_rl_runtime" else standins
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            entry = _LINE.fullmatch(line)
            if entry:  # the last line of a process that was killed may be torn
                into[entry[2]] += int(entry[1])
    return hooks, standins
