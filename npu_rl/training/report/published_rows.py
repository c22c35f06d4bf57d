"""Published figures for runs of recipes, from published_rows.json beside this file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npu_rl.common.bounded import read_json
from npu_rl.training.report.metric_panels import PER_CARD, PER_DIE

_FILE = Path(__file__).with_name("published_rows.json")


def published_rows(recipe: str, extended: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the published rows for a recipe's name, else those of the nearest recipe that it extends.

    The figures in `values` have verl's names; throughput is per die, as verl counts it, and per card.
    """
    rows = read_json(_FILE)["rows"]
    of_each = ([row for row in rows if one in row["recipes"]] for one in (recipe, *extended))
    found: list[dict[str, Any]] = next(filter(None, of_each), [])
    for row in found:
        values, dies = row["values"], row["dies_per_card"]
        if PER_CARD in values:
            values[PER_DIE] = values[PER_CARD] / dies
        elif PER_DIE in values:
            values[PER_CARD] = values[PER_DIE] * dies
    return found
