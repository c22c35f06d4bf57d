"""What a line of a training log says, without what Ray and terminals put around it."""

from __future__ import annotations

import re

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
# Ray marks what a worker says: "(WorkerDict pid=12, ip=10.0.0.2) "; vLLM's engine may put its own in front.
_SPEAKER = re.compile(r"\A((?:\([^()\s]*(?: [^()\s]*)?\s?pid=\d+(?:, ip=[^()\s]+)?\) ?)+)")
_REPEATED = re.compile(r" \[repeated \d+x across cluster\].*\Z")


def without_colours(text: str) -> str:
    """The text without ANSI control sequences."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def speaker_and_message(line: str) -> tuple[str, str]:
    """Who said it (Ray's prefix, "" for the driver itself) and what was said; no colours, no repeat mark."""
    plain = without_colours(line)
    if " [repeated " in plain:
        plain = _REPEATED.sub("", plain)
    prefix = _SPEAKER.match(plain)
    return (prefix[1].strip(), plain[prefix.end() :]) if prefix else ("", plain)
