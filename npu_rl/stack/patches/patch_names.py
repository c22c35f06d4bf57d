"""Names of patches: from the trailer `Patch: COMPONENT/slug` of a commit, else from its subject."""

from __future__ import annotations

import re
import unicodedata
from pathlib import PurePosixPath

_LONGEST = 52  # letters of a slug that is made of a subject, as git format-patch has about as many
_NUMBER = re.compile(r"^\d{4}-")


def trailers(message: str, name: str) -> list[str]:
    """Return the values of a trailer, in order."""
    return [found.strip() for found in re.findall(rf"(?m)^{name}:[ \t]*(\S.*)$", message)]


def slug_of_subject(subject: str) -> str:
    """Return the slug of a subject: its words in lower case, as many as fit; empty without words."""
    plain = unicodedata.normalize("NFKD", subject).encode("ascii", "ignore").decode().lower()
    words = re.findall(r"[a-z0-9]+", re.sub(r"['`]", "", plain))
    slug = ""
    for word in words:
        longer = f"{slug}-{word}" if slug else word[:_LONGEST]
        if len(longer) > _LONGEST:
            break
        slug = longer
    return slug


def slug_of_file(file: str) -> str:
    """Return the slug of a patch's file: its name without number and suffix."""
    return _NUMBER.sub("", PurePosixPath(file.partition(":")[2] or file).stem)


def number_of_file(name: str) -> int:
    """Return the number at the start of a file's name; 0 without one."""
    return int(name[:4]) if _NUMBER.match(name) else 0
