"""Evidence that a tree truncates prompts on the left, regardless of data.truncation.

Its agent loop limits prompts; the dataset only keeps data.truncation (verl/utils/dataset/rl_dataset.py:115@7aed6b2).
"""

from __future__ import annotations

from pathlib import Path

from npu_rl.recipes.trainer_code.citations import CitedCode, Place

CUT_LEFT = Place(
    "verl/experimental/agent_loop/agent_loop.py", "; left-truncating.", ("v0.8.0", "7aed6b2", "8851219")
)


def where_cut_left(code: Path | None) -> str:
    """Return file:line of the code that truncates prompts on the left; "" without a tree, or if it raises instead."""
    status = CitedCode(code).find(CUT_LEFT)
    return status.where if status.holds else ""
