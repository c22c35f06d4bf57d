"""Helpers for example files, which manifests and recipes have alike."""

from __future__ import annotations

from pathlib import Path


def is_structural(path: Path) -> bool:
    """True if the JSON Schema alone must refuse this bad example."""
    return "\n# structural\n" in path.read_text(encoding="utf-8")


def ids(path: Path) -> str:
    return path.stem


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)
