"""The addresses of the documentation's pages, for messages: an installed npu-rl has no docs/."""

from __future__ import annotations

SITE = "https://npu-rl.invalid"
"""The site's address, as in pyproject.toml and mkdocs.yml: RFC 2606's reserved `.invalid` until there is one."""


def page_url(page: str, section: str = "") -> str:
    """Return the address of docs/PAGE.md. section: The anchor of a heading."""
    return f"{SITE}/{page}/{f'#{section}' if section else ''}"
