"""Whole micro batches in each pass of a step, which the engines of verl 0.8 and 0.9 assert."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.code_trees import lay
from tests.plan.helpers import rule
from tests.plan.test_server_rollout import PACKED_LOG_PROB, SERVERS, TOKENS, script

NAME = "micro-batch-divides-share"
UTILS = {
    "verl/workers/engine/utils.py": """
        assert total_data_size % (force_group_size * micro_batch_size_per_gpu) == 0, (
            "data size must be divisible by force_group_size * micro_batch_size_per_gpu"
        )
        """
}


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        (("actor.micro_batch=3",), 16),
        (("actor.mini_batch=1", "actor.micro_batch=8"), 4),
        (("rollout.log_prob_micro_batch=3",), 16),
        (("reference.micro_batch=5",), 16),
        (("reference.micro_batch=5", "actor.kl_loss.use=false"), 0),
        (("rollout.log_prob_micro_batch=3", "overrides.algorithm.rollout_correction.bypass_mode=true"), 0),
        (("actor.micro_batch=4", "rollout.log_prob_micro_batch=8", "reference.micro_batch=2"), 0),
        (("data.batch=5", "rollout.log_prob_micro_batch=8"), 20),
        (("data.batch=5", "rollout.log_prob_micro_batch=8", "overrides.trainer.use_v1=true"), 0),
    ],
)
def test_each_pass_has_whole_micro_batches(tmp_path: Path, changes: tuple[str, ...], share: int) -> None:
    """16 responses on one replica; verl 0.9's trainer fills a batch of 20 up to 32."""
    code = lay(tmp_path / "there", SERVERS | UTILS)
    found = rule(script(code, *changes), NAME)
    assert found.ok is (share == 0) and found.certain
    if share:
        assert f" of a replica's {share} responses (verl/workers/engine/utils.py:" in found.figures
        fix = found.fix.removeprefix("set ").replace(" to ", "=")
        others = [one for one in changes if one.partition("=")[0] != fix.partition("=")[0]]
        assert rule(script(code, *others, fix), NAME).ok
    gone = rule(script(lay(tmp_path / "gone", SERVERS), *changes), NAME)
    assert gone.ok and gone.skipped


def test_micro_batches_packed_by_tokens_have_no_number(tmp_path: Path) -> None:
    packed = (
        *TOKENS,
        f"{PACKED_LOG_PROB}=true",
        "overrides.actor_rollout_ref.ref.log_prob_use_dynamic_bsz=true",
    )
    made = script(lay(tmp_path, SERVERS | UTILS), "actor.micro_batch=3", *packed)
    assert NAME not in {one.id for one in made.rules}


@pytest.mark.parametrize(
    ("packed", "size", "loss", "missing"),
    [
        ("false", "~", "true", True),
        ("false", "2", "true", False),
        ("true", "~", "true", False),
        ("false", "~", "false", False),
    ],
)
def test_a_reference_that_alone_is_not_packed_needs_its_own(
    tmp_path: Path, packed: str, size: str, loss: str, missing: bool
) -> None:
    """verl's validation passes over it, and the engine divides by null."""
    reference = f"overrides.actor_rollout_ref.ref.log_prob_use_dynamic_bsz={packed}"
    own = (reference, f"reference.micro_batch={size}", f"actor.kl_loss.use={loss}")
    alone = (*TOKENS, f"{PACKED_LOG_PROB}=true", *own)
    made = script(lay(tmp_path / "there", SERVERS | UTILS), *alone)
    found = [one for one in made.rules if one.id == "micro-batch-missing"]
    assert [one.ok for one in found] == [False] * missing
    assert all(one.certain and "(verl/workers/engine/utils.py:" in one.figures for one in found)
    older = script(lay(tmp_path / "older", SERVERS), *alone)
    assert "micro-batch-missing" not in {one.id for one in older.rules}


@pytest.mark.parametrize(
    ("recipe_key", "trainer_key"),
    [
        ("actor.micro_batch", "actor.ppo_micro_batch_size"),
        ("rollout.log_prob_micro_batch", "rollout.log_prob_micro_batch_size"),
    ],
)
def test_a_size_for_all_dies_is_none_for_the_engine(
    tmp_path: Path, recipe_key: str, trainer_key: str
) -> None:
    """verl's validation asks for either of the two keys, and its engine reads one."""
    key = f"overrides.actor_rollout_ref.{trainer_key}"
    total = (f"{recipe_key}=~", f"{key}_per_gpu=null", f"{key}=16")
    found = rule(script(lay(tmp_path / "there", SERVERS | UTILS), *total), "micro-batch-missing")
    assert not found.ok and "(verl/workers/engine/utils.py:" in found.figures
    assert found.fix == f"set {recipe_key} in place of {key}"
    older = script(lay(tmp_path / "older", SERVERS), *total)
    assert "micro-batch-missing" not in {one.id for one in older.rules}
