"""Git settings that editors add to a repository on their own: setup accepts them and carries them over.

Only settings that run no program and change no file, with values on a single line.
"""

from __future__ import annotations

import re

_SECTION = re.compile(r'\[(?:branch "[\w./+-]+"|gui)\]')
_NOTE = re.compile(
    r"\s*(?:(?:vscode-merge-base|github-pr-(?:owner-number|base-branch)) = (?P<quote>\"?)[\w./+:# -]+(?P=quote)"
    # GitKraken's, GitLens among them: some have JSON, with git's escapes.
    r"|gk-[a-z-]+ = (?:\"(?:\\[\"\\]|[^\"\\])*\"|(?:\\[\"\\]|[^\"\\])*)"
    r"|(?:wmstate|geometry) = [\w.+ -]+)"
)


def split_settings(config: str) -> tuple[list[str], list[str]]:
    """Return the lines of a configuration that editors wrote, with their sections' headers, and all others."""
    notes: list[str] = []
    others: list[str] = []
    section: list[str] = []
    for line in [*config.splitlines(), "[]"]:
        if line.lstrip().startswith("["):
            own = _SECTION.fullmatch(section[0].strip()) if section else None
            is_note = own is not None and all(_NOTE.fullmatch(text) for text in section[1:] if text.strip())
            (notes if is_note else others).extend(section)
            section = []
        section.append(line)
    return notes, others
