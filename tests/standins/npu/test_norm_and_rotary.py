"""Norm, activation, rotary embedding and format: against torch's own modules and complex numbers."""

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
    close(rstd, (x.double().square().mean(-1, keepdim=True) + 1e-5) ** -0.5)


def test_gradients_of_norm_and_swiglu(torch_npu: ModuleType) -> None:
    x = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    gamma = torch.randn(8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: torch_npu.npu_rms_norm(a, b)[0], (x, gamma))
    assert torch.autograd.gradcheck(torch_npu.npu_swiglu, (x,))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("dim", [-1, 0])
def test_swiglu(torch_npu: ModuleType, dim: int, dtype: Any) -> None:
    x = torch.randn(6, 10).to(dtype)
    wide = x.double()
    a, b = (wide[:, :5], wide[:, 5:]) if dim == -1 else (wide[:3], wide[3:])
    close(torch_npu.npu_swiglu(x, dim=dim), (a / (1 + (-a).exp()) * b).to(dtype))
    with pytest.raises(ValueError, match=r"npu_swiglu.*odd"):
        torch_npu.npu_swiglu(torch.randn(3))


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
    x = torch.randn(shape).to(dtype)
    angles = torch.rand(shape[0], 1, 1, shape[-1] // 2, dtype=torch.float64) * 6
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
