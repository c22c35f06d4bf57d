"""Removal of passwords and tokens from URLs and messages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit, urlunsplit

from npu_rl.common.masking import MASK

HIDDEN = MASK
_USERINFO = re.compile(r"(?<=://)[^/?#\n]*@")  # a space is invalid there, but users write it
_SHORTEST_SECRET = 3  # anything shorter would blank out ordinary words


def strip_credentials(url: str) -> str:
    """Return the URL without user, password, query and fragment; the query of a signed link is a secret."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # an unescaped "/" in a password gives an invalid port
    except ValueError:
        return HIDDEN
    host = parts.netloc.rpartition("@")[2]
    if host == parts.netloc and ":" in host and "@" in parts.path:
        return HIDDEN  # possibly a password with an unescaped "/", so hide everything
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def secrets_in(urls: Iterable[str]) -> tuple[str, ...]:
    """Return the passwords in these URLs, and user names without a password (tokens), as written and decoded."""
    found: set[str] = set()
    for url in urls:
        match = _USERINFO.search(url)
        if match:
            user, _, password = match.group().removesuffix("@").partition(":")
            secret = password or user
            found.update((secret, unquote(secret)))
    return tuple(sorted((s for s in found if len(s) >= _SHORTEST_SECRET), key=lambda s: (-len(s), s)))


def scrub(text: str, secrets: Iterable[str] = ()) -> str:
    """Return `text` as one printable line, without user:password@ and the given secrets."""
    text = _USERINFO.sub("", text)
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
