"""What the stand-in gives to models of transformers that verl_npu patched, and to MindSpeed's grouped layers."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal


def test_only_a_patched_model_gets_torch_npu(torch_npu: ModuleType) -> None:
    from npu_rl_standins_npu import transformers_ops

    patched, plain = ModuleType("patched"), ModuleType("plain")
    patched.is_torch_npu_available = lambda: False  # type: ignore[attr-defined]
    for module in (patched, plain):
        transformers_ops.install_in(module)
    assert patched.torch_npu is torch_npu  # type: ignore[attr-defined]
    assert not hasattr(plain, "torch_npu")


@pytest.mark.parametrize(("shape", "dimension"), [((4, 6), 0), ((8, 3), 1), ((8, 6), 1)])
def test_a_part_of_a_weight_is_cut_by_its_shape(
    torch_npu: ModuleType, shape: tuple[int, int], dimension: int
) -> None:
    """Of a whole 8 x 6, whatever MindSpeed says; a weight that is the whole is left as MindSpeed says."""
    from npu_rl_standins_npu import grouped_weights

    assert torch_npu
    asked: list[int] = []
    module = SimpleNamespace(
        _initialize_affine_weight_cpu=lambda *_, partition_dim, **__: asked.append(partition_dim)
    )
    grouped_weights.install_in(module)
    module._initialize_affine_weight_cpu(torch.empty(shape), 8, 6, 4, partition_dim=1, rank=0)
    assert asked == [dimension]


def test_autocast_can_be_switched_off(torch_npu: ModuleType) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), torch_npu.npu.amp.autocast(enabled=False):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
