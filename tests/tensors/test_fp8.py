"""The arithmetic of the cast, against a spelling of it in Python's integers and doubles."""

from __future__ import annotations

import random
import re
import struct
from typing import Any

import pytest

from tests.weights.tiny_checkpoint import f32, naive_cast

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal

from npu_rl.weights.tensors.npu_rl_tensors.fp8 import (  # noqa: E402
    Fp8Cast,
    _require_same_bits,
    require_numbers,
    require_valid,
)
from npu_rl.weights.tensors.npu_rl_tensors.tensor_error import TensorError  # noqa: E402

CODES = bytes(code for code in range(256) if code & 0x7F != 0x7F)
LARGEST = 3.3895313892515355e38 / 448


def cast(codes: bytes, shape: tuple[int, int], scales: list[float], block: tuple[int, int]) -> bytes:
    blocks = (-(-shape[0] // block[0]), -(-shape[1] // block[1]))
    out = torch.empty(shape, dtype=torch.bfloat16)
    Fp8Cast().cast_rows(
        torch.tensor(list(codes), dtype=torch.uint8).view(torch.int8).view(shape),
        torch.tensor(scales, dtype=torch.float32).view(blocks),
        block,
        out,
    )
    return struct.pack(f"<{out.numel()}h", *out.view(torch.int16).flatten().tolist())


def test_every_code_with_scales_of_every_size() -> None:
    chosen = random.Random(0)
    scales = [1e-45, 1e-40, 1.2e-38, 2.0**-120, 1.0, 448.0, LARGEST]
    scales += [2.0 ** chosen.uniform(-149, 118) for _ in range(300)]
    scales = list(struct.unpack(f"<{len(scales)}f", f32(scales)))
    codes = CODES * len(scales)
    shape = (len(scales), len(CODES))
    out = bytearray()
    for row, scale in enumerate(scales):
        out += naive_cast(codes[row * shape[1] : (row + 1) * shape[1]], (1, shape[1]), [scale], shape[1])
    assert cast(codes, shape, scales, (1, shape[1])) == bytes(out)


@pytest.mark.parametrize("shape", [(1, 1), (128, 128), (129, 127), (7, 400), (300, 5), (256, 384)])
def test_blocks_at_every_edge(shape: tuple[int, int]) -> None:
    chosen = random.Random(shape[0])
    codes = bytes(chosen.choices(CODES, k=shape[0] * shape[1]))
    count = -(-shape[0] // 128) * -(-shape[1] // 128)
    scales = list(struct.unpack(f"<{count}f", f32([chosen.uniform(1e-6, 1e-2) for _ in range(count)])))
    assert cast(codes, shape, scales, (128, 128)) == naive_cast(codes, shape, scales)


def test_it_is_what_torch_computes_from_float8() -> None:
    codes = torch.randint(0, 127, (64, 4096), dtype=torch.uint8)
    scales = torch.rand(1, 32) * 1e-3
    out = torch.empty(64, 4096, dtype=torch.bfloat16)
    Fp8Cast().cast_rows(codes.view(torch.int8), scales, (128, 128), out)
    product = codes.view(torch.float8_e4m3fn).float() * scales.repeat_interleave(128, 1)
    assert torch.equal(out.view(torch.int16), product.to(torch.bfloat16).view(torch.int16))


@pytest.mark.parametrize("value", [0.0, -0.0, -1e-3, float("inf"), float("nan"), LARGEST * 1.01])
def test_an_invalid_scale_is_found(value: float) -> None:
    scales = torch.ones(3, 4)
    require_valid(scales, "w", "x")
    scales[1, 2] = value
    with pytest.raises(TensorError, match=r"Invalid scale(.|\n)*x\[1, 2\]"):
        require_valid(scales, "w", "x")


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_a_weight_that_is_nan_is_found(code: int) -> None:
    codes = torch.tensor([*CODES, 0], dtype=torch.uint8).view(5, -1)
    require_numbers(codes.view(torch.int8), 10, "x")
    codes[3, 4] = code
    with pytest.raises(TensorError, match=r"x\[13, 4\]"):
        require_numbers(codes.view(torch.int8), 10, "x")


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(TensorError, match="torch can't use the device npu"):
        Fp8Cast("npu")


def test_a_device_that_computes_other_bits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that sets subnormal numbers to zero, as some do."""

    class Flushing(Fp8Cast):
        def cast_rows(self, codes: Any, scales: Any, block: Any, out: Any) -> None:
            super().cast_rows(codes, scales, block, out)
            out[out.abs() < 1.1754944e-38] = 0

    class OtherNan(Fp8Cast):
        """A device whose NaN has other bits: no weight may be one, so none is compared."""

        def cast_rows(self, codes: Any, scales: Any, block: Any, out: Any) -> None:
            super().cast_rows(codes, scales, block, out)
            out[(codes.view(torch.uint8) & 0x7F == 0x7F).expand(out.shape)] = float("nan")

    _require_same_bits(Fp8Cast())
    _require_same_bits(OtherNan())
    with pytest.raises(TensorError, match="differ from a CPU") as caught:
        _require_same_bits(Flushing())
    assert re.match(r"Weight 0x(?!00)[0-9a-f]{2} with scale", str(caught.value.why))
