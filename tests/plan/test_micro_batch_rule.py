"""Whole micro batches in each pass of a step, which the engines of verl 0.8 and 0.9 assert."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.code_trees import lay
from tests.plan.helpers import broken, rule
from tests.plan.test_server_rollout import ROLLOUT, SERVERS, TOKENS, script

SHARE, MISSING = "micro-batch-divides-share", "micro-batch-missing"
UTILS = {
    "verl/workers/engine/utils.py": """
        assert total_data_size % (force_group_size * micro_batch_size_per_gpu) == 0, (
            "data size must be divisible by force_group_size * micro_batch_size_per_gpu"
        )
        """
}
PACKED_LOG_PROB = f"{ROLLOUT}log_prob_use_dynamic_bsz=true"
PACKED_REFERENCE = "overrides.actor_rollout_ref.ref.log_prob_use_dynamic_bsz"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    return lay(tmp_path, SERVERS | UTILS)


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
        (("actor.micro_batch=3", *TOKENS, PACKED_LOG_PROB, f"{PACKED_REFERENCE}=true"), 0),
    ],
)
def test_each_pass_has_whole_micro_batches(code: Path, changes: tuple[str, ...], share: int) -> None:
    """16 responses on one replica; verl 0.9's trainer fills a batch of 20 up to 32."""
    assert (SHARE in broken(script(code, *changes))) is (share > 0)
    if share:
        found = rule(script(code, *changes), SHARE)
        assert found.certain and f" of a replica's {share} responses (verl/workers/engine" in found.figures
        fix = found.fix.removeprefix("set ").replace(" to ", "=")
        others = [one for one in changes if one.partition("=")[0] != fix.partition("=")[0]]
        assert SHARE not in broken(script(code, *others, fix))


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
    tmp_path: Path, code: Path, packed: str, size: str, loss: str, missing: bool
) -> None:
    """verl's validation passes over it, and the engine divides by null."""
    own = (f"{PACKED_REFERENCE}={packed}", f"reference.micro_batch={size}", f"actor.kl_loss.use={loss}")
    alone = (*TOKENS, PACKED_LOG_PROB, *own)
    assert (MISSING in broken(script(code, *alone))) is missing
    assert MISSING not in broken(script(lay(tmp_path / "older", SERVERS), *alone))
