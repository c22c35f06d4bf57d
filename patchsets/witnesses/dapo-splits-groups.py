"""DAPO's batch is cut to its first rows after the responses to a prompt have been distributed over the batch.

Called is RayDAPOTrainer.fit (recipe/dapo/dapo_ray_trainer.py@796871d with verl_npu 2.3.0's patch, which repeats by
interleave=False), with a rollout and a reward that are made here. "kept" are the prompts of the rows that are trained
on: whole groups of 3 are "acacac".
"""

from __future__ import annotations

import contextlib
from typing import Any

from witness_common import dapo_trainer, show

STAND_INS = ("npu",)


class Stop(Exception):
    """Ends the observed training loop."""


def main() -> dict[str, Any]:
    """Return the rows that DAPO's loop keeps of 4 prompts with 3 responses each: one is filtered, 2 are trained on."""
    from recipe.dapo import dapo_ray_trainer as trainer

    kept: list[str] = []

    def stop(batch: Any) -> None:
        kept.extend(batch.non_tensor_batch["prompt"].tolist())
        raise Stop

    trainer.compute_response_mask = stop
    with contextlib.suppress(Stop):
        trainer.RayDAPOTrainer.fit(dapo_trainer("abcd", samples=3, train=2, steps=1, filtered=True))
    return {"fault": kept != list("acacac"), "kept": "".join(kept)}


if __name__ == "__main__":
    show(main)
