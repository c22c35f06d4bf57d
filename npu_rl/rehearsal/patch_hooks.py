"""The patches of a workspace, and those that a rehearsal reached."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import read_file
from npu_rl.workspace.verification.verify import Report


@dataclass(frozen=True)
class PatchUse:
    """A patch and its use in a rehearsal.

    Attributes:
        slugs: Its switches.
        runs: Number of times its hook ran; None if no level that runs the trainer was selected.
        why: Why it was not rehearsed, or "".
        needs_npu: What only an NPU can show, from its header.
    """

    component: str
    name: str
    slugs: tuple[str, ...]
    runs: int | None
    why: str
    needs_npu: str

    def to_json(self) -> dict[str, Any]:
        """Return the use as JSON types."""
        return {**vars(self), "slugs": list(self.slugs), "rehearsed": bool(self.runs)}

    def line(self) -> str:
        """Return the use as one line of text."""
        if self.runs:
            return f"{self.component}: {self.name}: its hook ran {self.runs} times"
        return f"{self.component}: {self.name}: not rehearsed: {self.why}"


def patch_uses(report: Report, hooks: Counter[str] | None) -> list[PatchUse]:
    """Return the uses of all patches of the workspace's lock.

    Args:
        hooks: Number of runs by hook; None if nothing was trained.
    """
    from npu_rl.stack.patches.patch_header import parse_header

    texts = {
        hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest(): text
        for text in report.receipt.texts.values()
    }
    uses = []
    for component, patch in report.lock.patches():
        header = parse_header(texts.get(patch.sha256, "").partition("\ndiff --git ")[0])
        slugs = header.switches
        runs = None if hooks is None else hooks[_hook_name(patch.name)]
        needs = " ".join(header.fields.get("Needs-NPU", "").split())
        uses.append(PatchUse(component, patch.name, slugs, runs, _missing_reason(slugs, runs), needs))
    return uses


def _hook_name(name: str) -> str:
    """Return the name under which a patch's hook is counted: the patch's name without number and suffix."""
    return name.removesuffix(".patch").partition("-")[2]


def _missing_reason(slugs: tuple[str, ...], runs: int | None) -> str:
    if runs:
        return ""
    if not slugs:
        return "it has no hook that could be counted; its own test proves it"
    if runs is None:
        return "no level that runs the trainer was selected"
    return "with these settings the trainer does not reach its hook"


# NAME-HOST-PID.NUMBER.txt; older records have neither HOST nor NUMBER.
_FILE = re.compile(r"(npu_rl_runtime|npu_rl_standins\w*|torch_npu)-(?:.+-)?[0-9]+(?:\.[0-9]+)?\.txt")
_LINE = re.compile(r" *([0-9]+) (\S.*)")


def read_usage(*folders: Path) -> tuple[Counter[str], Counter[str]]:
    """Return how often each adaptation's hook ran and how often each stand-in was used, over all processes."""
    hooks: Counter[str] = Counter()
    standins: Counter[str] = Counter()
    for path in sorted(path for folder in folders for path in folder.glob("*.txt")):
        found = _FILE.fullmatch(path.name)
        if not found:
            continue
        counts = hooks if found[1] == "npu_rl_runtime" else standins
        try:
            text = read_file(path).decode("utf-8", "replace")
        except (OSError, ValueError):
            continue  # no file of ours
        for line in text.splitlines():
            entry = _LINE.fullmatch(line)
            if entry:  # the last line of a killed process may be incomplete
                counts[entry[2]] += int(entry[1])
    return hooks, standins
