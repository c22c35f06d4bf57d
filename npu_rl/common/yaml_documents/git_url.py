"""Validation of git URLs.

git accepts more than addresses in place of a URL: options, and `ext::` or `fd::` remotes that run commands. So only
known schemes are valid, and no URL may contain a secret, since URLs are copied into the lock, the history and the run
record.
"""

from __future__ import annotations

import re

from npu_rl.common.yaml_documents.problems import shown

SCHEMES = ("https", "http", "ssh", "git", "file")

_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])"
_USER = r"[A-Za-z0-9_][A-Za-z0-9._+-]*"
_WEB = re.compile(rf"(?:[^/@]*@)?{_HOST}(?::[0-9]{{1,5}})?/[^/].*")
_REMOTE = re.compile(rf"(?:{_USER}@)?{_HOST}(?::[0-9]{{1,5}})?/[^/].*")
_SCP = re.compile(rf"{_USER}@{_HOST}:(?![-:]).+")

URL_PATTERN = (
    r"^((https?|ssh|git)://[^ ]+|file://(localhost)?/[^ ]+"
    r"|[A-Za-z0-9_][A-Za-z0-9._+-]*@[A-Za-z0-9\[][^ ]*:[^ ]+)$"
)


def check_git_url(value: str) -> str:
    """Return the URL, or raise ValueError with the reason and what to write. Secrets are never echoed."""
    scheme, _, rest = value.partition("://")
    user, at, _ = rest.split("/")[0].rpartition("@")
    if at and (":" in user or scheme in ("http", "https")):
        raise ValueError(
            "a URL must not contain a user, password or token, since it is copied into the lock:"
            " use a credential helper, netrc or --rewrite"
        )
    if re.search(r"[?#]", rest):
        raise ValueError(
            "a git URL must not contain '?' or '#': remove that part, and use a credential helper for secrets"
        )
    check_form(value)
    return value


def check_form(value: str) -> None:
    """Raise ValueError unless a URL is safe for git: not an option, and not a remote that runs commands."""
    if re.search(r"[\x00-\x20\x7f-\xa0\u2028\u2029]", value):
        raise ValueError("a URL must not contain spaces or control characters")
    scheme, separator, rest = value.partition("://")
    if not separator:
        if not _SCP.fullmatch(value):
            raise ValueError(f"this is not a git URL: {_allowed()}")
    elif scheme not in SCHEMES:
        raise ValueError(f"the scheme {shown(scheme)} is not allowed: {_allowed()}")
    elif scheme == "file":
        if not re.fullmatch(r"(?:localhost)?/[^/].*", rest):
            raise ValueError("a file URL needs an absolute path: file:///absolute/path")
    elif not (_WEB if scheme in ("http", "https") else _REMOTE).fullmatch(rest):
        raise ValueError(f"the URL has no valid host or no path: write {scheme}://host/path")


def _allowed() -> str:
    return f"use {', '.join(f'{scheme}://' for scheme in SCHEMES)}/absolute/path or user@host:path"
