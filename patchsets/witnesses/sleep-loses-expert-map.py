"""Put an expert layer to sleep at level 2 and wake it like vllm-ascend's worker, and compare its expert map.

At level 2 vllm-ascend's allocator drops all that was allocated while the model was loaded. The worker keeps the
model's buffers, a reload brings the parameters back; what dynamic load balancing knows of the experts (log2phy, which
physical expert a logical one is) is neither (vllm_ascend/worker/worker.py:190 of 0.18.0, :216 of 0.23.0).

The tree's own: AscendFusedMoE's constructor with the map that init_eplb_config makes, NPUWorker.sleep and wake_up,
CaMemAllocator. Not the device's: memory that is released and mapped again is filled with 0xFF here; on a device it has
what was there last. vLLM's modules, and vllm-ascend's others, are names that compute nothing. verl does not sleep at
level 2 on NPUs (vllm_async_server.py:943@v0.8.0): level 1, which copies everything to the host, is compared as well.
"""

from __future__ import annotations

import ctypes
import sys
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
import torch_npu
from npu_rl_standins.named_modules import NamedModule, NamedModules
from witness_common import show

STAND_INS = ("npu",)

EXPERTS, REDUNDANT, RANKS = 8, 2, 2
CAMEM, LAYER, WORKER = (
    "vllm_ascend.device_allocator.camem",
    "vllm_ascend.ops.fused_moe.fused_moe",
    "vllm_ascend.worker.worker",
)
OWN = (
    CAMEM, LAYER, f"{LAYER}_0_23_0", WORKER, "vllm_ascend.eplb.core.eplb_utils",
    "vllm_ascend.quantization.quant_type",
)  # fmt: skip


class FusedMoE(torch.nn.Module):
    """Stand-in for the parts of vLLM's layer that AscendFusedMoE's constructor reads."""

    _routed_input_transform = gate = router = shared_experts = reduce_results = None
    custom_routing_function = e_score_correction_bias = weight_loader = None

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.moe_config = SimpleNamespace(num_experts=EXPERTS, ep_size=RANKS, ep_rank=0)
        method = SimpleNamespace(
            supports_eplb=True, create_weights=lambda **_: None, process_weights_after_loading=None
        )
        self.quant_config = SimpleNamespace(get_quant_method=lambda *_, **__: method)
        self.vllm_config = vllm_config()
        self.expert_map_manager = SimpleNamespace()
        self.ep_size, self.ep_rank, self.hidden_size, self.intermediate_size_per_partition = RANKS, 0, 4, 4
        self.layer_name, self.params_dtype = "experts", torch.bfloat16


def vllm_config() -> SimpleNamespace:
    model = SimpleNamespace(hf_config=SimpleNamespace(), hf_text_config=SimpleNamespace(hidden_size=4))
    parallel = SimpleNamespace(enable_dbo=False, tensor_parallel_size=1)
    return SimpleNamespace(model_config=model, parallel_config=parallel, quant_config=None)


def ascend_config() -> SimpleNamespace:
    eplb = SimpleNamespace(
        dynamic_eplb=True, expert_map_path=None, num_redundant_experts=REDUNDANT, eplb_policy_type=1,
        expert_heat_collection_interval=1,
    )  # fmt: skip
    return SimpleNamespace(
        eplb_config=eplb, multistream_overlap_gate=False, multistream_overlap_shared_expert=False,
        enable_shared_expert_dp=False, weight_nz_mode=0, enable_sleep_mode_extra_cleanup=False,
        ascend_compilation_config=SimpleNamespace(enable_static_kernel=False),
    )  # fmt: skip


def stand_in_for_the_device() -> None:
    """Stand-ins for the parts of CANN and vllm-ascend's C extension that CaMemAllocator calls."""
    import acl.rt as runtime
    import vllm.utils.mem_constants as mem_constants
    import vllm_ascend.envs as variables
    import vllm_ascend.vllm_ascend_C as extension

    runtime.memcpy = lambda to, most, source, size, kind: ctypes.memmove(to, source, size)
    extension.python_create_and_map = lambda device, size, pointer, handle: None
    extension.python_unmap_and_release = lambda device, size, pointer, handle: (
        ctypes.memset(pointer, 0xFF, size) and None
    )
    mem_constants.GiB_bytes = 1 << 30
    variables.VLLM_ASCEND_ENABLE_NZ = 0
    torch.npu.mem_get_info = lambda: (0, 0)  # type: ignore[attr-defined]
    torch.npu.memory = SimpleNamespace(NPUPluggableAllocator=object)  # type: ignore[attr-defined]  # an annotation
    ordinary = torch.empty
    torch.empty = lambda *sizes, pin_memory=False, **options: ordinary(*sizes, **options)  # type: ignore[assignment]


def make_layer() -> torch.nn.Module:
    """Return rank 0's layer of EXPERTS experts, REDUNDANT of them duplicated on RANKS ranks."""
    import vllm.model_executor.layers.fused_moe.layer as layer
    import vllm_ascend.ascend_config as configuration
    import vllm_ascend.eplb.adaptor.vllm_adaptor as adaptor
    import vllm_ascend.utils as utils

    layer.FusedMoE = FusedMoE
    configuration.get_ascend_config = ascend_config
    utils.vllm_version_is = lambda version: version == "0.23.0"
    adaptor.VllmEplbAdaptor = SimpleNamespace(register_layer=lambda layer: None)
    made = import_module(LAYER).AscendFusedMoE
    # What would run the layer.
    sys.modules[made.__init__.__module__].AscendMoERunner = lambda *_, **__: None  # type: ignore[attr-defined]
    experts: torch.nn.Module = made(num_experts=EXPERTS, intermediate_size=4)
    return experts


def kept(level: int) -> bool:
    """Return whether the expert map is unchanged after a sleep at `level` and a wake_up."""
    experts = make_layer()
    experts.register_buffer("a_buffer", torch.arange(4))
    allocators = import_module(CAMEM).CaMemAllocator
    allocators.instance = allocator = allocators()
    allocator.current_tag = "weights"  # what NPUWorker.load_model allocates in
    for tensor in (experts.log2phy, experts.a_buffer):
        allocator.python_malloc_callback((0, tensor.nbytes, tensor.data_ptr(), 0))
    worker_class = import_module(WORKER).NPUWorker
    worker = worker_class.__new__(worker_class)
    worker.model_runner, worker.vllm_config = SimpleNamespace(model=experts), vllm_config()
    worker._sleep_saved_buffers = {}
    before = experts.log2phy.clone()
    worker.sleep(level)
    worker.wake_up(["weights"])
    assert experts.a_buffer.tolist() == [0, 1, 2, 3], "the worker did not restore a buffer"
    return torch.equal(experts.log2phy, before)


def main() -> dict[str, object]:
    # After the real ones: torch_npu's stand-in has what it has.
    sys.meta_path.append(NamedModules("vllm", "vllm_ascend", "acl", "torch_npu", own=OWN))
    sys.modules |= {name: NamedModule(name) for name in ("vllm", "vllm_ascend")}
    torch_npu._C._NPUTaskGroupHandle = object
    stand_in_for_the_device()
    found = {level: kept(level) for level in (1, 2)}
    return {"fault": not found[2], "kept at level 1": found[1], "kept at level 2": found[2]}


if __name__ == "__main__":
    show(main)
