"""The keys of a command of `weights` in docs/json.md."""

from __future__ import annotations

import re

from tests.support import ROOT


def documented_keys(command: str, within: str | None = None) -> list[str]:
    """The keys of a command's document, or of the object under one of them."""
    text = (ROOT / "docs" / "json.md").read_text(encoding="utf-8").partition("## `npu-rl weights`")[2]
    row = re.search(rf"^\| `{command}` \| (.+) \|$", text, re.MULTILINE)
    assert row is not None
    shown = [key.partition(":") for key in re.findall(r"`([^`]+)`", row[1])]
    if within is None:
        return [key for key, _, _ in shown]
    inner = next(rest for key, _, rest in shown if key == within)
    return [
        part.split(":")[0].strip()
        for part in re.sub(r"(:[^,{}]*)\{[^}]*\}", r"\1", inner.strip()[1:-1]).split(",")
    ]
