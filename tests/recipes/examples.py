"""Example recipes shared by the tests of this folder."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
BAD = sorted((HERE / "bad").glob("*.yaml"))
GOOD = sorted((HERE / "good").glob("*.yaml"))

MINIMAL = (HERE / "good" / "minimal.yaml").read_text(encoding="utf-8")
EVERYTHING = HERE / "good" / "everything.yaml"
OWN_KEYS = HERE / "good" / "own-keys.yaml"


def open_mapping(path: Path) -> str:
    """Return a key of the example whose mapping has keys of a person's own."""
    return "trainer.resume" if path.name.startswith("own-") else "reward.arguments"
