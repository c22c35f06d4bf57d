"""verl finds npu_cross_entropy_loss in the stand-in and takes it for log-probabilities; nothing else changes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.code_trees import archive

pytest.importorskip("torch")
pytestmark = [pytest.mark.rehearsal, pytest.mark.upstreams]

CODE = """
import torch, verl.utils.device as device, verl.utils.torch_functional as f
assert device.get_device_name() == "cpu" and not device.is_npu_available
assert f.NPU_CROSS_ENTROPY_LOSS_AVAILABLE
logits = torch.randn(2, 5, 11, requires_grad=True)
labels = torch.randint(0, 11, (2, 5))
mine, theirs = f.logprobs_from_logits(logits, labels), f.logprobs_from_logits_v2(logits, labels)
torch.testing.assert_close(mine, theirs)
upstream = torch.randn_like(mine)
a, b = (torch.autograd.grad(x, logits, upstream)[0] for x in (mine, theirs))
torch.testing.assert_close(a, b)
from npu_rl_standins.used import _counter
print(_counter._counts)
"""


def test_verl_takes_the_fused_loss_and_stays_on_the_cpu(
    python: Callable[..., subprocess.CompletedProcess[str]], upstreams: Path, tmp_path: Path
) -> None:
    pytest.importorskip("tensordict")
    (tmp_path / "tree").mkdir()
    tree = archive(upstreams / "volcengine+verl/repo", "55e3c5b", "verl", tmp_path / "tree")
    done = python("-c", CODE, path=(tree,), NPU_RL_USAGE=str(tmp_path))
    assert "'torch_npu.npu_cross_entropy_loss': 1" in done.stdout
