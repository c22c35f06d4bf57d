"""Cross-entropy, AdamW and the paged cache, against torch's own and loops."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal

F = torch.nn.functional


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_cross_entropy_and_its_gradient_are_torchs(torch_npu: ModuleType, reduction: str, dtype: Any) -> None:
    logits = torch.randn(6, 9).to(dtype).requires_grad_()
    target = torch.randint(0, 9, (6,))
    loss, log_prob, *empty = torch_npu.npu_cross_entropy_loss(logits, target, reduction=reduction)
    expected = F.cross_entropy(logits.float(), target, reduction=reduction).view(-1)
    tolerance = 1e-6 if dtype == torch.float32 else 2e-2
    assert loss.dtype == log_prob.dtype == dtype and loss.shape == expected.shape
    torch.testing.assert_close(loss.float(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        log_prob.float(), logits.float().log_softmax(-1), rtol=tolerance, atol=tolerance
    )
    assert not log_prob.requires_grad and [part.numel() for part in empty] == [0, 0]
    upstream = torch.randn_like(expected)
    mine, theirs = (
        torch.autograd.grad(x, logits, upstream.to(x.dtype), retain_graph=True)[0] for x in (loss, expected)
    )
    torch.testing.assert_close(mine.float(), theirs.float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_with_weights_and_an_ignored_class(
    torch_npu: ModuleType, smoothing: float, reduction: str
) -> None:
    logits, weight = torch.randn(8, 4), torch.rand(4) + 0.1
    target = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3])
    named = {"weight": weight, "ignore_index": 2, "label_smoothing": smoothing, "reduction": reduction}
    got = torch_npu.npu_cross_entropy_loss(logits, target, **named)[0]
    torch.testing.assert_close(got, F.cross_entropy(logits, target, **named).view(-1))


def test_a_negative_ignore_index_ignores_nothing(torch_npu: ModuleType) -> None:
    with pytest.raises(IndexError, match=r"npu_cross_entropy_loss: targets must lie in \[0, 3\)"):
        torch_npu.npu_cross_entropy_loss(torch.zeros(2, 3), torch.tensor([0, -100]))


@pytest.mark.parametrize(
    "named",
    [
        {"label_smoothing": 0.1, "reduction": "none"},
        {"ignore_index": 1},
        {"weight": torch.ones(3)},
        {"return_zloss": True},
        {"lse_square_scale_for_zloss": 0.1},
        {"reduction": "batchmean"},
    ],
)
def test_cross_entropy_refuses_what_an_npu_has_no_gradient_for(
    torch_npu: ModuleType, named: dict[str, Any]
) -> None:
    logits = torch.zeros(2, 3, requires_grad=True)
    with pytest.raises(NotImplementedError, match="torch_npu.npu_cross_entropy_loss: " + next(iter(named))):
        torch_npu.npu_cross_entropy_loss(logits, torch.tensor([0, 1]), **named)


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("as_tensors", [False, True])
def test_adamw_steps_are_torchs(torch_npu: ModuleType, maximize: bool, as_tensors: bool) -> None:
    start = torch.randn(5, 3)
    reference = start.clone().requires_grad_()
    optimizer = torch.optim.AdamW([reference], lr=0.1, betas=(0.8, 0.95), weight_decay=0.3, maximize=maximize)
    parameter, first, second = start.clone(), torch.zeros(5, 3), torch.zeros(5, 3)
    for step in range(1, 5):
        grad = torch.randn(5, 3)
        reference.grad = grad.clone()
        optimizer.step()
        numbers = [0.8 ** (step - 1), 0.95 ** (step - 1), 0.1, 0.3, 0.8, 0.95, 1e-8]
        if as_tensors:
            numbers = [torch.tensor([number]) for number in numbers]
        returned = torch_npu.npu_apply_adam_w(
            *numbers, grad, None, False, maximize, out=(parameter, first, second)
        )
        assert returned[0] is parameter
        torch.testing.assert_close(parameter, reference.detach(), rtol=1e-5, atol=1e-6)


def test_adamw_with_amsgrad_divides_by_the_largest_moment(torch_npu: ModuleType) -> None:
    start, largest = torch.randn(4), torch.full((4,), 2.0)
    reference = start.clone().requires_grad_()
    optimizer = torch.optim.AdamW([reference], lr=0.1, amsgrad=True)
    optimizer.state[reference] = {
        "step": torch.tensor(0.0),
        "exp_avg": torch.zeros(4),
        "exp_avg_sq": torch.zeros(4),
        "max_exp_avg_sq": largest.clone(),
    }
    reference.grad = torch.randn(4)
    optimizer.step()
    out = (start.clone(), torch.zeros(4), torch.zeros(4))
    torch_npu.npu_apply_adam_w(
        1, 1, 0.1, 0.01, 0.9, 0.999, 1e-8, reference.grad, largest, True, False, out=out
    )
    torch.testing.assert_close(out[0], reference.detach(), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="npu_apply_adam_w: amsgrad needs max_grad_norm"):
        torch_npu.npu_apply_adam_w(1, 1, 0.1, 0, 0.9, 0.99, 1e-8, start, None, True, False, out=out)


def filled_cache(torch_npu: ModuleType, lengths: list[int], heads: int, size: int) -> tuple[Any, ...]:
    """Keys and values of each sequence, and caches of blocks of 4 they were written to out of order."""
    blocks = torch.randperm(4 * len(lengths)).view(len(lengths), 4).int()
    caches = torch.zeros(16, 4, heads, size), torch.zeros(16, 4, heads, size)
    keys, values = ([torch.randn(length, heads, size) for length in lengths] for _ in range(2))
    for row, length in enumerate(lengths):
        slots = [int(blocks[row, i // 4]) * 4 + i % 4 for i in range(length)]
        torch_npu._npu_reshape_and_cache(
            key=torch.cat((keys[row], torch.ones(1, heads, size))),
            value=torch.cat((values[row], torch.ones(1, heads, size))),
            key_cache=caches[0],
            value_cache=caches[1],
            slot_indices=torch.tensor([*slots, -1], dtype=torch.int32),
        )
    return keys, values, *caches, blocks


def attend(q: Any, k: Any, v: Any, scale: float, causal: bool) -> Any:
    """(S, N, D) through torch, keys' heads shared."""
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[0] // x.shape[0], 0) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale).transpose(0, 1)


def test_a_prompt_written_to_the_cache_and_a_token_decoded_from_it(torch_npu: ModuleType) -> None:
    lengths = [5, 1, 12]
    keys, values, key_cache, value_cache, blocks = filled_cache(torch_npu, lengths, 2, 8)
    query, out = torch.randn(3, 4, 8), torch.zeros(3, 4, 8)
    torch_npu._npu_paged_attention(
        query=query,
        key_cache=key_cache,
        value_cache=value_cache,
        num_kv_heads=2,
        num_heads=4,
        scale_value=0.4,
        block_table=blocks,
        context_lens=torch.tensor(lengths, dtype=torch.int32),
        out=out,
    )
    for row in range(3):
        expected = attend(query[row : row + 1], keys[row], values[row], 0.4, False)[0]
        torch.testing.assert_close(out[row], expected, rtol=1e-5, atol=1e-6)

    # Latent attention keeps one cache: the values are the first entries of the keys.
    keys, _, key_cache, _, blocks = filled_cache(torch_npu, lengths, 1, 8)
    out = torch.zeros(3, 4, 6)
    torch_npu._npu_paged_attention_mla(
        query, key_cache, 1, 4, 0.4, blocks, torch.tensor(lengths), mla_vheadsize=6, out=out
    )
    for row in range(3):
        expected = attend(query[row : row + 1], keys[row], keys[row][..., :6], 0.4, False)[0]
        torch.testing.assert_close(out[row], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [1.0, -10000.0, float("-inf")])
def test_prompts_one_after_the_other(torch_npu: ModuleType, value: float) -> None:
    lengths = [4, 1, 6]
    q, k = torch.randn(11, 4, 8), torch.randn(11, 2, 8)
    v, out = torch.randn(11, 2, 5), torch.zeros(11, 4, 5)
    mask = torch.zeros(7, 7).masked_fill(torch.ones(7, 7).triu(1) == 1, value)
    torch_npu._npu_flash_attention(
        query=q,
        key=k,
        value=v,
        mask=mask,
        seq_len=torch.tensor(lengths),
        scale_value=0.3,
        num_heads=4,
        num_kv_heads=2,
        out=out,
    )
    start = 0
    for length in lengths:
        rows = slice(start, start + length)
        torch.testing.assert_close(
            out[rows], attend(q[rows], k[rows], v[rows], 0.3, True), rtol=1e-5, atol=1e-6
        )
        start += length


@pytest.mark.parametrize(
    ("mask", "told"),
    [(torch.arange(16.0).view(4, 4), "more than one value"), (torch.zeros(2, 2), "a sequence has 4 tokens")],
)
def test_masks_that_arent_masks_are_refused(torch_npu: ModuleType, mask: Any, told: str) -> None:
    x = torch.zeros(4, 1, 2)
    with pytest.raises(NotImplementedError, match="_npu_flash_attention: mask=Tensor.*" + told):
        torch_npu._npu_flash_attention(x, x, x, mask, torch.tensor([4]), 1.0, 1, 1, x.clone())


def test_a_cache_in_another_format_is_refused(torch_npu: ModuleType) -> None:
    x, cache = torch.zeros(2, 1, 32), torch.zeros(3, 2, 4, 16)
    with pytest.raises(NotImplementedError, match="_npu_reshape_and_cache: key_cache=Tensor"):
        torch_npu._npu_reshape_and_cache(x, x, cache, cache, torch.tensor([0, 1]))
