"""Evidence that a tree's Megatron actor can only be built by a bridge (mbridge or Megatron-Bridge).

From verl 0.8 on verl/models/mcore/config_converter.py is still there, but only verl/model_merger calls it.
"""

from __future__ import annotations

from npu_rl.recipes.trainer_code.citations import Place

ONLY_BRIDGES = Place(
    "verl/workers/engine/megatron/transformer_impl.py",
    "assert self.engine_config.use_mbridge",
    ("v0.8.0", "7aed6b2", "8851219"),
)
