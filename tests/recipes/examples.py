"""Example recipes shared by the tests of this folder."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
BAD = sorted((HERE / "bad").glob("*.yaml"))
GOOD = sorted((HERE / "good").glob("*.yaml"))

MINIMAL = (HERE / "good" / "minimal.yaml").read_text(encoding="utf-8")
EVERYTHING = HERE / "good" / "everything.yaml"
