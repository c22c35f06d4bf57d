"""Lines of a training log without Ray's prefix and terminal control sequences."""

from __future__ import annotations

import re

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
# Ray's prefix of a worker's line: "(WorkerDict pid=12, ip=10.0.0.2) "; vLLM's engine may add its own before it.
_SPEAKER = re.compile(r"\A((?:\([^()\s]*(?: [^()\s]*)?\s?pid=\d+(?:, ip=[^()\s]+)?\) ?)+)")
_REPEATED = re.compile(r" \[repeated \d+x across cluster\].*\Z")


def without_colours(text: str) -> str:
    """Remove ANSI control sequences."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def speaker_and_message(line: str) -> tuple[str, str]:
    """Split a line into Ray's prefix ("" for the driver) and the message, without colours and repeat marks."""
    plain = without_colours(line)
    if " [repeated " in plain:
        plain = _REPEATED.sub("", plain)
    prefix = _SPEAKER.match(plain)
    return (prefix[1].strip(), plain[prefix.end() :]) if prefix else ("", plain)
