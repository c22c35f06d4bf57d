"""Rules on the trees of verl 0.8 and 0.9: what moved there, what is new, and what of older trees no longer holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.code_trees import lay
from tests.plan.helpers import rule
from tests.plan.test_server_rollout import SERVERS, script


@pytest.mark.parametrize(
    ("tensor", "divisor", "multiple"), [(8, True, False), (2, True, True), (3, False, False)]
)
def test_tensor_ranks_may_share_a_kv_head(tmp_path: Path, tensor: int, divisor: bool, multiple: bool) -> None:
    """From Megatron-core 0.16 on (f7dfb99795). The model has 4 KV heads."""
    config = "megatron/core/transformer/transformer_config.py"
    raised = 'f"num_query_groups ({self.num_query_groups}) must be a multiple {} "\n'
    name, size = "tensor-parallel-divides-kv-heads", f"actor.parallel.tensor={tensor}"
    newer = lay(tmp_path / "newer", SERVERS, {config: raised.replace("{} ", "or divisor of ")})
    older = lay(tmp_path / "older", SERVERS, {config: raised.replace("{} ", "of ")})
    assert rule(script(newer, size), name).ok is divisor
    assert rule(script(older, size), name).ok is multiple
