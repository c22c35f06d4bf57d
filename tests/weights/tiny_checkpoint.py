"""Small checkpoints in DeepSeek's FP8, written byte by byte without torch, and a cast of them that is only arithmetic.

Nothing of npu-rl's is used: the header, FP8 and the rounding to BF16 are spelled out here a second time.
"""

from __future__ import annotations

import functools
import json
import math
import random
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SIZES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "F16": 2}
Tensor = tuple[str, tuple[int, ...], bytes]


def write_file(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        assert len(content) == SIZES[dtype] * math.prod(shape), name
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    raw = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)


def read_file(path: Path) -> dict[str, Tensor]:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    found = {}
    for name, of in header.items():
        if name != "__metadata__":
            start, stop = of["data_offsets"]
            found[name] = of["dtype"], tuple(of["shape"]), content[8 + length + start : 8 + length + stop]
    return found


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def f32(values: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def fp8_value(code: int) -> float:
    """The number of an E4M3 code: 1 sign bit, 4 bits of exponent with bias 7, 3 bits of mantissa, no infinity."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code >> 3) & 0xF, code & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    if exponent == 0:
        return sign * mantissa / 8 * 2.0**-6
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def to_f32(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]


def bf16_bytes(value: float) -> bytes:
    """Round a float32 to BF16, to nearest, halves to even: on the integer of its bits."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    upper, lower = bits >> 16, bits & 0xFFFF
    if lower > 0x8000 or (lower == 0x8000 and upper & 1):
        upper += 1
    return struct.pack("<H", upper)


def naive_cast(codes: bytes, shape: tuple[int, int], scales: Sequence[float], block: int = 128) -> bytes:
    rows, columns = shape
    across = -(-columns // block)
    out = bytearray()
    for row in range(rows):
        for column in range(columns):
            scale = scales[(row // block) * across + column // block]
            # both factors have 24 bits of mantissa at most, so the product in double is exact and is rounded once
            out += bf16_bytes(to_f32(fp8_value(codes[row * columns + column]) * to_f32(scale)))
    return bytes(out)


class Maker:
    """Tensors of random bytes from one seed."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)

    def codes(self, count: int) -> bytes:
        return bytes(self.random.choice([c for c in range(256) if c & 0x7F != 0x7F]) for _ in range(count))

    def weight(self, name: str, rows: int, columns: int, block: int = 128) -> dict[str, Tensor]:
        blocks = (-(-rows // block), -(-columns // block))
        scales = [self.random.uniform(1e-5, 2e-2) for _ in range(blocks[0] * blocks[1])]
        return {
            name: ("F8_E4M3", (rows, columns), self.codes(rows * columns)),
            f"{name}_scale_inv": ("F32", blocks, f32(scales)),
        }

    def plain(self, name: str, *shape: int, dtype: str = "BF16") -> dict[str, Tensor]:
        """Random values, none of them NaN or infinite: the top bit of the exponent is 0."""
        size = SIZES[dtype]
        content = bytearray(self.random.randbytes(size * math.prod(shape)))
        content[size - 1 :: size] = bytes(byte & 0xBF for byte in content[size - 1 :: size])
        return {name: (dtype, shape, bytes(content))}


def write_checkpoint(
    folder: Path, shards: Mapping[str, Mapping[str, Tensor]], config: Mapping[str, Any] | None = None
) -> Path:
    folder.mkdir(parents=True)
    weight_map = {}
    for name, tensors in shards.items():
        write_file(folder / name, tensors, {"format": "pt"})
        weight_map |= dict.fromkeys(tensors, name)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    return folder


CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_hidden_layers": 2,
    "num_nextn_predict_layers": 1,
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    },
    "torch_dtype": "bfloat16",
}


@functools.cache
def _tiny_shards(seed: int) -> tuple[dict[str, Tensor], ...]:
    make = Maker(seed)
    layer = "model.layers.{}.{}".format
    first = {
        **make.plain("model.embed_tokens.weight", 40, 16),
        **make.weight(layer(0, "self_attn.q_a_proj.weight"), 130, 257),
        **make.plain(layer(0, "input_layernorm.weight"), 16),
    }
    second = {
        **make.weight(layer(1, "self_attn.o_proj.weight"), 128, 128),
        **make.weight(layer(1, "mlp.experts.0.up_proj.weight"), 3, 300),
        **make.plain(layer(1, "mlp.gate.e_score_correction_bias"), 8, dtype="F32"),
        **make.plain("lm_head.weight", 40, 16),
    }
    moved = layer(0, "self_attn.q_a_proj.weight_scale_inv")
    second[moved] = first.pop(moved)
    mtp = {
        **make.weight(layer(2, "mlp.up_proj.weight"), 128, 16),
        **make.plain(layer(2, "eh_proj.weight"), 16, 32),
    }
    return first, second, mtp


def tiny_fp8(folder: Path, seed: int = 0) -> Path:
    """2 layers and one of MTP in 3 shards: odd edges, a scale in another shard, a shard of MTP alone."""
    (folder.parent).mkdir(parents=True, exist_ok=True)
    names = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    write_checkpoint(folder, dict(zip(names, _tiny_shards(seed), strict=True)))
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    (folder / "modeling_deepseek.py").write_text("raise SystemExit('code of a checkpoint ran')\n")
    (folder / "figures").mkdir()
    return folder
