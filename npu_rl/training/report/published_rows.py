"""Published figures for runs of recipes, from published_rows.json beside this file.

Throughput is published per card or per die, verl's is per die: both are given of each row, with the dies of a card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import read_json

PER_DIE, PER_CARD = "throughput per die", "throughput per card"
_FILE = Path(__file__).with_name("published_rows.json")


@dataclass(frozen=True)
class PublishedRow:
    """Figures of one published run.

    Attributes:
        step: Step of the figures; None if their source names none.
        note: Differences from the recipe's run, and the arithmetic.
        values: By verl's names; throughput as PER_DIE and PER_CARD, in tokens per second.
    """

    recipes: tuple[str, ...]
    title: str
    source: str
    devices: str
    step: int | None
    note: str
    values: Mapping[str, float]


def published_rows(recipe: str, extended: Sequence[str] = ()) -> list[PublishedRow]:
    """Return the published rows for a recipe's name, else those of the nearest recipe that it extends."""
    of_each = ([row for row in all_rows() if one in row.recipes] for one in (recipe, *extended))
    return next(filter(None, of_each), [])


@cache
def all_rows() -> tuple[PublishedRow, ...]:
    """Return all published rows."""
    return tuple(_row(row) for row in read_json(_FILE)["rows"])


def _row(row: Mapping[str, Any]) -> PublishedRow:
    values = {name: float(value) for name, value in row["values"].items()}
    dies = row["dies_per_card"]
    if PER_CARD in values:
        values.setdefault(PER_DIE, values[PER_CARD] / dies)
    elif PER_DIE in values:
        values[PER_CARD] = values[PER_DIE] * dies
    return PublishedRow(
        tuple(row["recipes"]), row["title"], row["source"], row["devices"], row["step"], row["note"], values
    )
