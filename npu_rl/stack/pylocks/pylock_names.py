"""Names of the locks of packages beside a manifest; imports nothing, since `status` needs one."""

from __future__ import annotations


def pylock_name(stem: str, python: str, machine: str) -> str:
    """Return the name of a manifest's lock for a Python such as 3.11. PEP 751 allows no other dots in it."""
    return f"pylock.{stem.replace('.', '-')}-py{python.replace('.', '')}-{machine}.toml"
