"""Megatron-LM keeps whole copies of latent attention's down projections on every tensor-parallel rank.

"projections" has the classes of get_gpt_layer_with_transformer_engine_spec
(megatron/core/models/gpt/gpt_layer_specs.py@4af25fe); TELinear is a copy, TEColumnParallelLinear a part.

TransformerEngine has no CPU build, nor has triton, which two files of Megatron-LM need to be imported: names of all of
them are stood in for, and none computes.
"""

from __future__ import annotations

import json
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

FUSIONS = "megatron.core.fusions"
WITH_TRITON = (f"{FUSIONS}.fused_indices_converter", f"{FUSIONS}.fused_pad_routing_map")
NAMES = ("linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj", "linear_proj")


class Names(ModuleType):
    """A module with every name: of a class for one that begins like a class, else of a module."""

    __path__: list[str] = []  # noqa: RUF012  a package, so that its modules are asked for, too
    __version__ = "2.7.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = type(name, (torch.nn.Module,), {}) if name[0].isupper() else Names(name)
        setattr(self, name, found)
        return found


class Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        stood_in = name.partition(".")[0] == "transformer_engine" or name in WITH_TRITON
        return ModuleSpec(name, self) if stood_in else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Names(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.insert(0, Finder())

from megatron.core.models.gpt import gpt_layer_specs  # noqa: E402

layer = gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec(
    num_experts=8, moe_grouped_gemm=True, qk_layernorm=True, multi_latent_attention=True
)
projections = layer.submodules.self_attention.submodules
classes = {name: getattr(projections, name).__name__ for name in NAMES}
print(json.dumps({"fault": classes["linear_kv_down_proj"] == "TELinear", "projections": classes}))
