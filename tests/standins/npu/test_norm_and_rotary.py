"""Norms, activations, rotary embeddings, softmax, shapes: against torch's own modules and complex numbers."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal

TYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(3, 8), (2, 5, 16), (1, 2, 3, 32)]


def close(got: Any, expected: Any) -> None:
    assert got.shape == expected.shape
    loose = {torch.bfloat16: 2e-2, torch.float16: 2e-3}.get(got.dtype, 2e-6)
    torch.testing.assert_close(got.float(), expected.float(), rtol=loose, atol=loose)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm_is_torchs(torch_npu: ModuleType, shape: tuple[int, ...], dtype: Any) -> None:
    x, norm = torch.randn(shape).to(dtype), torch.nn.RMSNorm(shape[-1], eps=1e-5)
    torch.nn.init.normal_(norm.weight)
    y, rstd = torch_npu.npu_rms_norm(x, norm.weight.detach(), epsilon=1e-5)
    assert y.dtype == dtype and rstd.dtype == torch.float32
    close(y, norm(x.float()).detach())
    close(
        rstd,
        torch.linalg.vector_norm(x.float(), dim=-1, keepdim=True).square().div(shape[-1]).add(1e-5) ** -0.5,
    )


def test_rms_norm_over_two_dimensions(torch_npu: ModuleType) -> None:
    x, gamma = torch.randn(4, 3, 5), torch.randn(3, 5)
    y, rstd = torch_npu.npu_rms_norm(x, gamma)
    assert rstd.shape == (4, 1, 1)
    close(y, torch.nn.functional.rms_norm(x, (3, 5), gamma, 1e-6))


def test_gradients_of_norm_swiglu_gelu_and_softmax(torch_npu: ModuleType) -> None:
    x = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    gamma = torch.randn(8, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(3, 8) > 0.6
    assert torch.autograd.gradcheck(lambda a, b: torch_npu.npu_rms_norm(a, b)[0], (x, gamma))
    assert torch.autograd.gradcheck(torch_npu.npu_swiglu, (x,))
    assert torch.autograd.gradcheck(torch_npu.npu_fast_gelu, (x,))
    assert torch.autograd.gradcheck(lambda a: torch_npu.npu_scaled_masked_softmax(a, mask, 0.5), (x,))


@pytest.mark.parametrize("dtype", TYPES)
def test_add_rms_norm_returns_the_next_residual(torch_npu: ModuleType, dtype: Any) -> None:
    x1, x2, gamma = torch.randn(4, 16).to(dtype), torch.randn(4, 16).to(dtype), torch.randn(16).to(dtype)
    y, rstd, x = torch_npu.npu_add_rms_norm(x1, x2, gamma, 1e-5)
    total = x1.double() + x2.double()
    close(x, total.to(dtype))
    close(rstd, (total.square().mean(-1, keepdim=True) + 1e-5).rsqrt())
    close(y, torch.nn.functional.rms_norm(total, (16,), gamma.double(), 1e-5).to(dtype))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("dim", [-1, 0])
def test_swiglu(torch_npu: ModuleType, dim: int, dtype: Any) -> None:
    x = torch.randn(6, 10).to(dtype)
    wide = x.double()
    a, b = (wide[:, :5], wide[:, 5:]) if dim == -1 else (wide[:3], wide[3:])
    close(torch_npu.npu_swiglu(x, dim=dim), (a / (1 + (-a).exp()) * b).to(dtype))
    with pytest.raises(ValueError, match=r"npu_swiglu.*odd"):
        torch_npu.npu_swiglu(torch.randn(3))


def test_fast_gelu_approximates_gelu(torch_npu: ModuleType) -> None:
    x = torch.linspace(-5, 5, 101)
    assert (torch_npu.npu_fast_gelu(x) - torch.nn.functional.gelu(x)).abs().max() < 0.021


def turned(x: Any, angles: Any, by_pairs: bool) -> Any:
    """Rotate pairs of entries as complex numbers."""
    wide = x.double()
    pairs = wide.unflatten(-1, (-1, 2)) if by_pairs else torch.stack(wide.chunk(2, -1), -1)
    numbers = torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angles), angles)
    result = torch.view_as_real(numbers)
    return result.flatten(-2) if by_pairs else torch.cat(result.unbind(-1), -1)


def cos_sin(angles: Any, by_pairs: bool) -> tuple[Any, Any]:
    whole = angles.repeat_interleave(2, -1) if by_pairs else torch.cat((angles, angles), -1)
    return whole.cos(), whole.sin()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("by_pairs", [False, True])
@pytest.mark.parametrize("shape", [(7, 2, 3, 8), (2, 4, 5, 16)])
def test_rotary_turns_complex_numbers(
    torch_npu: ModuleType, shape: tuple[int, ...], by_pairs: bool, dtype: Any
) -> None:
    x, angles = (
        torch.randn(shape).to(dtype),
        torch.rand(shape[0], 1, 1, shape[-1] // 2, dtype=torch.float64) * 6,
    )
    cos, sin = (table.to(dtype) for table in cos_sin(angles, by_pairs))
    expected = turned(x, angles, by_pairs).to(dtype)
    close(torch_npu.npu_rotary_mul(x, cos, sin, "interleave" if by_pairs else "half"), expected)
    close(torch_npu.npu_rotary_position_embedding(x, cos, sin, int(by_pairs)), expected)


def test_rotary_gradient_turns_back(torch_npu: ModuleType) -> None:
    angles = torch.rand(5, 1, 1, 4, dtype=torch.float64)
    x = torch.randn(5, 2, 3, 8, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn_like(x)
    torch_npu.npu_rotary_mul(x, *cos_sin(angles, False)).backward(upstream)
    close(x.grad, turned(upstream, -angles, False))


@pytest.mark.parametrize(
    ("x", "cos"), [((4, 2, 8), (4, 1, 8)), ((4, 1, 2, 8), (4, 1, 1, 4)), ((4, 1, 2, 7), (4, 1, 1, 7))]
)
def test_rotary_refuses_what_an_npu_refuses(
    torch_npu: ModuleType, x: tuple[int, ...], cos: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=r"npu_rotary_mul: .*dimension"):
        torch_npu.npu_rotary_mul(torch.zeros(x), torch.zeros(cos), torch.zeros(cos))


def test_interleave_rope_takes_pairs_and_gives_halves(torch_npu: ModuleType) -> None:
    x, angles = torch.randn(3, 4, 1, 64), torch.rand(3, 1, 1, 32, dtype=torch.float64)
    got = torch_npu.npu_interleave_rope(x, *(table.float() for table in cos_sin(angles, False)))
    pairs = turned(x, angles, by_pairs=True).float()
    close(got, torch.cat((pairs[..., ::2], pairs[..., 1::2]), -1))


def test_apply_rotary_pos_emb_writes_in_place(torch_npu: ModuleType) -> None:
    query, key = torch.randn(1, 6, 4, 128), torch.randn(1, 6, 2, 128)
    angles = torch.rand(1, 6, 1, 64, dtype=torch.float64)
    expected = [turned(x, angles, False).float() for x in (query, key)]
    returned = torch_npu.npu_apply_rotary_pos_emb(query, key, *(t.float() for t in cos_sin(angles, False)))
    assert returned[0] is query and returned[1] is key
    close(query, expected[0])
    close(key, expected[1])


@pytest.mark.parametrize("is_neox", [True, False])
def test_vllm_rotary_embedding_turns_part_of_each_head(torch_npu: ModuleType, is_neox: bool) -> None:
    positions, angles = torch.tensor([5, 0, 2]), torch.rand(9, 4, dtype=torch.float64)
    query, key = torch.randn(3, 2 * 12), torch.randn(3, 12)
    expected = []
    for x in (query, key):
        heads = x.view(3, -1, 12).clone()
        heads[..., :8] = turned(heads[..., :8], angles[positions].unsqueeze(1), not is_neox).float()
        expected.append(heads.view(3, -1))
    cache = torch.cat((angles.cos(), angles.sin()), -1).float()
    torch_npu._npu_rotary_embedding(positions, query, key, 12, cache, is_neox)
    close(query, expected[0])
    close(key, expected[1])


def test_kv_rmsnorm_rope_cache(torch_npu: ModuleType) -> None:
    latent, rotary, tokens = 32, 8, 5
    kv, gamma = torch.randn(tokens, 1, 1, latent + rotary), torch.randn(latent)
    angles = torch.rand(tokens, 1, 1, rotary // 2, dtype=torch.float64)
    k_cache, ckv_cache = torch.full((3, 4, 1, rotary), 9.0), torch.full((3, 4, 1, latent), 9.0)
    slots = torch.tensor([7, 0, -1, 11, 3])
    cos, sin = (table.float() for table in cos_sin(angles, False))
    first, second, keys, latents = torch_npu.npu_kv_rmsnorm_rope_cache(
        kv, gamma, cos, sin, slots, k_cache, ckv_cache, epsilon=1e-6, cache_mode="PA", is_output_kv=True
    )
    assert first is k_cache and second is ckv_cache
    pairs = turned(kv[..., latent:], angles, by_pairs=True).float()
    close(keys, torch.cat((pairs[..., ::2], pairs[..., 1::2]), -1))
    close(latents, torch.nn.functional.rms_norm(kv[..., :latent], (latent,), gamma, 1e-6))
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            close(k_cache[slot // 4, slot % 4, 0], keys[token, 0, 0])
            close(ckv_cache[slot // 4, slot % 4, 0], latents[token, 0, 0])
    untouched = set(range(12)) - set(slots.tolist())
    assert all(bool((ckv_cache.view(12, -1)[slot] == 9).all()) for slot in untouched)
    with pytest.raises(NotImplementedError, match="npu_kv_rmsnorm_rope_cache: cache_mode='PA_NZ'"):
        torch_npu.npu_kv_rmsnorm_rope_cache(
            kv, gamma, cos, sin, slots, k_cache, ckv_cache, cache_mode="PA_NZ"
        )


@pytest.mark.parametrize("dtype", TYPES)
def test_scaled_masked_softmax(torch_npu: ModuleType, dtype: Any) -> None:
    x, mask = torch.randn(2, 3, 4, 4).to(dtype), torch.ones(4, 4, dtype=torch.bool).triu(1)
    expected = torch.stack(
        [
            torch.cat((row[: i + 1].double().mul(0.3).softmax(-1), torch.zeros(3 - i)))
            for block in x.view(-1, 4, 4)
            for i, row in enumerate(block)
        ]
    )
    expected = expected.view(2, 3, 4, 4).to(dtype)
    close(torch_npu.npu_scaled_masked_softmax(x, mask, 0.3, False), expected)
    close(torch_npu.npu_scaled_masked_softmax(x, torch.zeros(4, 4, dtype=torch.bool), 0.3, True), expected)
    assert bool((torch_npu.npu_scaled_masked_softmax(x, torch.ones(4, 4).bool()) == 0.25).all())


def test_shapes_and_formats(torch_npu: ModuleType) -> None:
    x = torch.arange(144.0).view(2, 3, 4, 6)
    first = torch_npu.npu_confusion_transpose(x, (0, 2, 1, 3), (2, 4, 18), True)
    assert first.shape == (2, 4, 18) and first[1, 2, 7] == x[1, 1, 2, 1]
    second = torch_npu.npu_confusion_transpose(x, (0, 2, 1), (2, 12, 6), False)
    assert second.shape == (2, 6, 12) and second[1, 5, 7] == x[1, 1, 3, 5]
    assert torch_npu.npu_format_cast(x, 29) is x and torch_npu.npu_format_cast_(x, 2) is x
    assert torch_npu.get_npu_format(x) == 2
