"""The type of known symptoms in logs."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Symptom:
    """A known symptom.

    Attributes:
        pattern: Searched in the plain text of a log.
        cause: Text in which {address} is what the pattern's group of that name has found.
        source: OWNER#NUMBER of an issue thread, or path@version.
        printed: A line of a log that has the pattern, as the program wrote it, for the page on troubleshooting: people
            search it for what stands in their log.
    """

    pattern: re.Pattern[str]
    cause: str
    hint: str
    source: str
    printed: str

    def cause_in(self, found: re.Match[str]) -> str:
        """Return the cause with the address found in the log, or "an unnamed node"."""
        if "{address}" not in self.cause:
            return self.cause
        return self.cause.replace("{address}", found.groupdict().get("address") or "an unnamed node")


def symptom(pattern: str, cause: str, hint: str, source: str, printed: str) -> Symptom:
    """Return a symptom whose pattern is given as text."""
    return Symptom(re.compile(pattern), cause, hint, source, printed)
