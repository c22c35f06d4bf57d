"""Cross-entropy and AdamW, against torch's own."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_cross_entropy_and_its_gradient_are_torchs(
    torch_npu: ModuleType, dtype: Any, tolerance: float
) -> None:
    logits = torch.randn(6, 9).to(dtype).requires_grad_()
    target = torch.randint(0, 9, (6,))
    loss, log_prob, *empty = torch_npu.npu_cross_entropy_loss(logits, target, reduction="none")
    expected = torch.nn.functional.cross_entropy(logits.float(), target, reduction="none")
    assert loss.dtype == log_prob.dtype == dtype and loss.shape == expected.shape
    assert not log_prob.requires_grad and [part.numel() for part in empty] == [0, 0]
    upstream = torch.randn_like(expected)
    gradients = [
        torch.autograd.grad(x, logits, upstream.to(x.dtype), retain_graph=True)[0].float()
        for x in (loss, expected)
    ]
    pairs = [(loss, expected), (log_prob, logits.float().log_softmax(-1)), tuple(gradients)]
    for mine, theirs in pairs:
        torch.testing.assert_close(mine.float(), theirs.float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "named",
    [
        {"label_smoothing": 0.1}, {"ignore_index": 1}, {"weight": torch.ones(3)}, {"return_zloss": True},
        {"lse_square_scale_for_zloss": 0.1}, {"reduction": "mean"},
    ],
)  # fmt: skip
def test_cross_entropy_refuses_by_name(torch_npu: ModuleType, named: dict[str, Any]) -> None:
    call = {"reduction": "none", **named}
    with pytest.raises(NotImplementedError, match="torch_npu.npu_cross_entropy_loss: " + next(iter(named))):
        torch_npu.npu_cross_entropy_loss(torch.zeros(2, 3), torch.tensor([0, 1]), **call)


def test_a_negative_ignore_index_ignores_nothing(torch_npu: ModuleType) -> None:
    with pytest.raises(IndexError, match=r"npu_cross_entropy_loss: targets must lie in \[0, 3\)"):
        torch_npu.npu_cross_entropy_loss(torch.zeros(2, 3), torch.tensor([0, -100]), reduction="none")


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("as_tensors", [False, True])
def test_adamw_steps_are_torchs(torch_npu: ModuleType, maximize: bool, as_tensors: bool) -> None:
    start = torch.randn(5, 3)
    reference = start.clone().requires_grad_()
    optimizer = torch.optim.AdamW([reference], lr=0.1, betas=(0.8, 0.95), weight_decay=0.3, maximize=maximize)
    out = start.clone(), torch.zeros(5, 3), torch.zeros(5, 3)
    for step in range(1, 5):
        reference.grad = torch.randn(5, 3)
        optimizer.step()
        numbers = [0.8 ** (step - 1), 0.95 ** (step - 1), 0.1, 0.3, 0.8, 0.95, 1e-8]
        if as_tensors:
            numbers = [torch.tensor([number]) for number in numbers]
        returned = torch_npu.npu_apply_adam_w(*numbers, reference.grad, None, False, maximize, out=out)
        assert returned[0] is out[0]
        torch.testing.assert_close(out[0], reference.detach(), rtol=1e-5, atol=1e-6)
    with pytest.raises(NotImplementedError, match="npu_apply_adam_w: amsgrad=True"):
        torch_npu.npu_apply_adam_w(*numbers, start, None, True, False, out=out)
