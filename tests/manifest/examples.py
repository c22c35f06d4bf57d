"""Example manifests shared by the tests of this folder."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
BAD = sorted((HERE / "bad").glob("*.yaml"))
GOOD = sorted((HERE / "good").glob("*.yaml"))
PIN = "55e3c5bc09c85dba09f736eef476f110ad641b75"

MINIMAL = (HERE / "good" / "minimal.yaml").read_text(encoding="utf-8")
FLAGSHIP = HERE / "good" / "flagship.yaml"
