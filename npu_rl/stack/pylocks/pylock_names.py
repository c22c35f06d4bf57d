"""Names of the locks of packages beside a manifest; imports nothing, since `status` needs one."""

from __future__ import annotations

_SAME_MACHINE = {"arm64": "aarch64", "amd64": "x86_64", "x86-64": "x86_64"}


def machine_name(machine: str) -> str:
    """Return the locks' name for a machine, which other systems name differently: aarch64 for arm64."""
    return _SAME_MACHINE.get(machine.lower(), machine)


def pylock_name(stem: str, python: str, machine: str) -> str:
    """Return the name of a manifest's lock for a Python such as 3.11. PEP 751 allows no other dots in it."""
    return f"pylock.{stem.replace('.', '-')}-py{python.replace('.', '')}-{machine}.toml"
