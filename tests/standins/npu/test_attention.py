"""npu_fusion_attention and what belongs to it, against scaled_dot_product_attention and autograd."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal

TRIANGLE = torch.ones(2048, 2048, dtype=torch.bool).triu(1)
LAYOUTS = ("SBH", "BSH", "BSND", "BNSD")


def laid(layout: str, x: Any) -> Any:
    """(B, N, S, D) in this layout."""
    if layout == "SBH":
        return x.permute(2, 0, 1, 3).reshape(x.shape[2], x.shape[0], -1)
    if layout == "BSH":
        return x.permute(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)
    return x.permute(0, 2, 1, 3).contiguous() if layout == "BSND" else x


def inputs(
    batch: int, heads: int, kv_heads: int, sq: int, sk: int, dk: int, dv: int, dtype: Any
) -> list[Any]:
    shapes = [(batch, heads, sq, dk), (batch, kv_heads, sk, dk), (batch, kv_heads, sk, dv)]
    return [torch.randn(shape).to(dtype) for shape in shapes]


def reference(q: Any, k: Any, v: Any, scale: float, seen: Any) -> Any:
    """scaled_dot_product_attention of float64; queries that see nothing give zeros."""
    share = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(share, 1) for x in (k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q.double(), k, v, attn_mask=seen, scale=scale)
    return out.nan_to_num(0.0)


def seen_by(mode: int, sq: int, sk: int, pre: int, following: int) -> Any:
    """Which keys each query sees, entry by entry."""
    rows = []
    for i in range(sq):
        shift = 0 if mode in (0, 2) else sk - sq
        low, high = {0: (i - pre, i + following), 4: (i + shift - pre, i + shift + following)}.get(
            mode, (0, i + shift)
        )
        rows.append([low <= j <= high for j in range(sk)])
    return torch.tensor(rows)


MODES = [  # mode, queries, keys, pre, following
    (0, 7, 7, 7, 0), (0, 9, 9, 3, 2), (2, 8, 8, 1, 1), (2, 5, 9, 1, 1), (3, 5, 9, 1, 1), (3, 9, 5, 1, 1),
    (4, 6, 8, 2, 1),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("mode", "sq", "sk", "pre", "following"), MODES)
def test_layouts_and_sparse_modes(
    torch_npu: ModuleType, layout: str, mode: int, sq: int, sk: int, pre: int, following: int, dtype: Any
) -> None:
    q, k, v = inputs(2, 4, 2, sq, sk, 8, 8, dtype)
    seen = seen_by(mode, sq, sk, pre, following)
    mask = ~seen.view(1, 1, sq, sk) if mode == 0 else TRIANGLE
    named = {"atten_mask": mask, "pre_tockens": pre, "next_tockens": following, "sparse_mode": mode}
    inputs_ = [laid(layout, x) for x in (q, k, v)]
    out, largest, total, *_ = torch_npu.npu_fusion_attention(*inputs_, 4, layout, scale=0.4, **named)
    expected = reference(q, k, v, 0.4, seen)
    assert out.dtype == dtype
    tolerance = 2e-2 if dtype == torch.bfloat16 else 2e-6
    torch.testing.assert_close(out.double(), laid(layout, expected), rtol=tolerance, atol=tolerance)
    assert largest.shape == total.shape == (2, 4, sq, 8)
    scores = q.double() @ k.double().repeat_interleave(2, 1).transpose(-1, -2) * 0.4
    normaliser = scores.masked_fill(~seen, float("-inf")).logsumexp(-1)
    got = (largest + total.log())[..., 0].double()[..., seen.any(-1)]
    torch.testing.assert_close(got, normaliser[..., seen.any(-1)], rtol=1e-5, atol=1e-5)


def test_without_a_mask_every_key_is_seen_whatever_the_mode(torch_npu: ModuleType) -> None:
    q, k, v = inputs(1, 2, 2, 4, 6, 8, 4, torch.float32)
    for mode in (0, 2, 3):
        named = {"scale": 0.5, "sparse_mode": mode, "next_tockens": 0}
        out = torch_npu.npu_fusion_attention(q, k, v, 2, "BNSD", **named)[0]
        torch.testing.assert_close(out, reference(q, k, v, 0.5, None).float())


def test_a_full_mask_of_mode_1_and_uint8(torch_npu: ModuleType) -> None:
    q, k, v = inputs(2, 2, 1, 5, 5, 8, 8, torch.float32)
    seen = torch.rand(2, 1, 5, 5) > 0.4
    seen[..., 0] = True
    named = {"atten_mask": (~seen).to(torch.uint8), "scale": 1.0, "sparse_mode": 1}
    out = torch_npu.npu_fusion_attention(q, k, v, 2, "BNSD", **named)[0]
    torch.testing.assert_close(out, reference(q, k, v, 1.0, seen).float())


@pytest.mark.parametrize("mode", [0, 2, 3])
@pytest.mark.parametrize(
    "lengths", [([3, 5, 2], [3, 5, 2]), ([4, 1], [4, 1]), ([2, 3], [4, 3]), ([0, 6], [0, 6])]
)
def test_tnd_is_each_sequence_by_itself(
    torch_npu: ModuleType, lengths: tuple[list[int], list[int]], mode: int
) -> None:
    sizes_q, sizes_k = lengths
    if mode == 0 and sizes_q != sizes_k:
        pytest.skip("mode 0 masks are drawn for sequences of one length")
    ends_q, ends_k = (torch.tensor(sizes).cumsum(0).tolist() for sizes in lengths)
    extra = 2  # padding at the end, of no sequence
    q, k, v = (
        torch.randn(sum(sizes) + extra, heads, 8, requires_grad=True)
        for sizes, heads in ((sizes_q, 4), (sizes_k, 2), (sizes_k, 2))
    )
    named: dict[str, Any] = {
        "atten_mask": TRIANGLE if mode else torch.ones(8, 8, dtype=torch.bool).triu(1),
        "actual_seq_qlen": [0, *ends_q, 0],  # Megatron-core's begin with 0; 0 at the end: takes no part
        "actual_seq_kvlen": [0, *ends_k, 0],
        **{"sparse_mode": mode, "next_tockens": 0, "softmax_layout": "TND"},
    }
    out, largest, total, *_ = torch_npu.npu_fusion_attention(q, k, v, 4, "TND", scale=0.4, **named)
    upstream = torch.randn_like(out)
    got = torch.autograd.grad(out, (q, k, v), upstream)
    assert out.shape == (sum(sizes_q) + extra, 4, 8) and largest.shape == total.shape == (*out.shape[:2], 8)

    parts, start_q, start_k = [], 0, 0
    for size_q, size_k in zip(sizes_q, sizes_k, strict=True):
        blocks = [
            x[a : a + size].transpose(0, 1).unsqueeze(0)
            for x, a, size in ((q, start_q, size_q), (k, start_k, size_k), (v, start_k, size_k))
        ]
        if size_q:
            seen = seen_by(mode, size_q, size_k, 99, 0)
            parts.append(reference(*blocks, 0.4, seen)[0].transpose(0, 1))
        start_q, start_k = start_q + size_q, start_k + size_k
    expected = torch.cat((*parts, torch.zeros(extra, 4, 8))).float()
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(got, torch.autograd.grad(expected, (q, k, v), upstream), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


REFUSED = [
    ({"keep_prob": 0.9}, "keep_prob=0.9"),
    ({"pse": torch.zeros(1)}, "pse=Tensor"),
    ({"prefix": [1]}, r"prefix=\[1\]"),
    ({"sparse_mode": 6, "atten_mask": TRIANGLE}, "sparse_mode=6"),
    ({"sparse_mode": 2, "atten_mask": torch.ones(4, 4).bool().triu(1)}, "2048 x 2048"),
    ({"sparse_mode": 3, "atten_mask": ~TRIANGLE}, "2048 x 2048"),
    ({"atten_mask": torch.zeros(4, 4).bool(), "next_tockens": 0}, "next_tockens=0 exclude"),
    ({"atten_mask": torch.zeros(2, 2).bool()}, "too small"),
    ({"atten_mask": torch.zeros(4, 4)}, "bool or uint8"),
    ({"input_layout": "NTD"}, "input_layout='NTD'"),
    ({"input_layout": "SBH"}, "can't have shape"),
]


@pytest.mark.parametrize(("named", "told"), REFUSED)
def test_what_it_cant_compute_it_refuses_by_name(
    torch_npu: ModuleType, named: dict[str, Any], told: str
) -> None:
    q = torch.zeros(1, 2, 4, 8)
    with pytest.raises((NotImplementedError, ValueError, TypeError), match="npu_fusion_attention.*" + told):
        torch_npu.npu_fusion_attention(q, q, q, 2, **{"input_layout": "BNSD"} | named)


def test_tnd_refuses_ends_that_fall(torch_npu: ModuleType) -> None:
    q = torch.zeros(6, 2, 8)
    for ends in ([4, 2], [3, 7], None):
        with pytest.raises(ValueError, match="actual_seq_qlen"):
            torch_npu.npu_fusion_attention(q, q, q, 2, "TND", actual_seq_qlen=ends, actual_seq_kvlen=[6])
