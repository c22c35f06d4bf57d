"""Compare GPTModel's arguments from mbridge for a configuration of transformers 4 and one of transformers 5.

LLMBridge._get_gptmodel_args (mbridge/core/llm_bridge.py:124@v0.15.1) and DeepseekV3Bridge's own read rope_theta.
Transformers 5.5.4 keeps it in rope_parameters: its Qwen3MoeConfig and DeepseekV3Config have no such attribute, which
was tried. Here the configurations are plain objects of both layouts, so the installed version plays no part.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

from mbridge.models.deepseek_v3 import DeepseekV3Bridge
from mbridge.models.qwen3moe import Qwen3MoEBridge

SIZES = {"vocab_size": 64, "max_position_embeddings": 128}
ROPE = {"rope_theta": 10000.0, "rope_type": "default"}
LAYOUTS = {
    "4": SimpleNamespace(**SIZES, rope_theta=ROPE["rope_theta"], rope_scaling=None),
    "5": SimpleNamespace(**SIZES, rope_parameters=ROPE, rope_scaling=ROPE),
}


def bases(layout: SimpleNamespace) -> list[float | None]:
    """Return the RoPE base that each bridge passes, or None if it raises."""
    found: list[float | None] = []
    for kind in (Qwen3MoEBridge, DeepseekV3Bridge):
        bridge = kind.__new__(kind)
        bridge.hf_config = layout
        try:
            found.append(bridge._get_gptmodel_args()["rotary_base"])
        except AttributeError:
            found.append(None)
    return found


if __name__ == "__main__":
    shown = {version: bases(layout) for version, layout in LAYOUTS.items()}
    print(json.dumps({"fault": None not in shown["4"] and None in shown["5"], "rotary_base": shown}))
