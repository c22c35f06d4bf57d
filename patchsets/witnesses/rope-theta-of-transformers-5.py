"""Compare RoPE's base and YaRN from mbridge for configurations of transformers 4 and of transformers 5.

LLMBridge._get_gptmodel_args (mbridge/core/llm_bridge.py:124@v0.15.1) and DeepseekV3Bridge's own read rope_theta, and
DeepseekV3Bridge._build_config reads rope_scaling if iterating over the configuration yields it. Transformers 5.5.4
keeps both in rope_parameters, of which rope_scaling is a property: its Qwen3MoeConfig and DeepseekV3Config have no
rope_theta. A class that a checkpoint brings (trust_remote_code), as DeepSeek-V3's configuration_deepseek.py, has
rope_theta, but iterating over it yields no rope_scaling. Both were tried there. Here the configurations are plain
objects of these layouts, so the installed version plays no part.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from mbridge.models.deepseek_v3 import DeepseekV3Bridge
from mbridge.models.qwen3moe import Qwen3MoEBridge
from witness_common import show

STAND_INS = ("npu",)

BASE, FACTOR = 50000.0, 40.0
YARN = {"type": "yarn", "factor": FACTOR, "original_max_position_embeddings": 4096}
PARAMETERS = {"rope_theta": BASE, "rope_type": "yarn", **YARN}

SIZES = [
    "vocab_size", "max_position_embeddings", "num_hidden_layers", "first_k_dense_replace", "intermediate_size",
    "rms_norm_eps", "moe_intermediate_size", "n_shared_experts", "n_routed_experts", "num_experts_per_tok",
    "routed_scaling_factor", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
]  # fmt: skip


class Config(SimpleNamespace):
    """A configuration: iterating over it yields the names of its own attributes, as over those of transformers."""

    def __init__(self, **rope: Any) -> None:
        super().__init__(**dict.fromkeys(SIZES, 64), **rope)

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))


class Config5(Config):
    """A configuration of transformers 5, where rope_scaling is a property."""

    @property
    def rope_scaling(self) -> Any:
        return self.rope_parameters


LAYOUTS = {
    "4": Config(rope_theta=BASE, rope_scaling=YARN),
    "5": Config5(rope_parameters=PARAMETERS),
    "5, the checkpoint's class": Config5(rope_theta=BASE, rope_parameters=PARAMETERS),
}


def read(layout: Config) -> dict[str, Any]:
    """Return what the bridges read of a configuration: None is what they raise an error for."""
    found: dict[str, Any] = {}
    for kind in (Qwen3MoEBridge, DeepseekV3Bridge):
        bridge = kind.__new__(kind)
        bridge.hf_config = layout
        bridge._build_base_config = dict  # Megatron-core's configuration, by its arguments
        try:
            found[kind.__name__] = bridge._get_gptmodel_args()["rotary_base"]
            if kind is DeepseekV3Bridge:
                options = bridge._build_config()
                found["YaRN"] = [options["rope_type"], options["rotary_scaling_factor"]]
        except AttributeError:
            found[kind.__name__] = None
    return found


def main() -> dict[str, Any]:
    found = {name: read(layout) for name, layout in LAYOUTS.items()}
    return {"fault": any(one != found["4"] for one in found.values()), "read": found}


if __name__ == "__main__":
    show(main)
