"""Tensors that vLLM computes from loaded weights: freed with the weights, computed again after loading.

In vLLM v0.9.1 and vllm-ascend v0.9.1rc2 these are the two halves of MLA's kv_b_proj per attention layer (`W_UV`,
`W_UK_T`; vllm_ascend/attention/mla_v1.py:662), under older names too. MoE layers have none, only a layout check.
"""

from __future__ import annotations

from typing import Any

FROM_KV_B_PROJ = ("W_UV", "W_UK_T", "W_UK", "w_kc", "w_vc")


def drop(model: Any) -> None:
    """Free the derived tensors. vLLM's are views of the weights, and would keep their memory."""
    import torch

    for module in model.modules():
        impl = getattr(module, "impl", None)
        for name in FROM_KV_B_PROJ:
            if isinstance(getattr(impl, name, None), torch.Tensor):
                setattr(impl, name, None)


def rebuild(model: Any, dtype: Any) -> None:
    """Compute the derived tensors again, as vLLM's loader does after loading.

    The order is the loader's (vllm/model_executor/model_loader/utils.py:93): the layers' quant methods first, then
    attention, which takes its tensors from the layers. dtype: the activations' dtype.

    Parameters stay the same objects. Raises RuntimeError if a quant method moves weights to another address or layout.
    """
    import torch

    with torch.no_grad():
        modules = list(model.named_modules())  # a quant method may add modules of its own
        for name, module in modules:
            process = getattr(getattr(module, "quant_method", None), "process_weights_after_loading", None)
            if process is not None:
                _in_place(name, module, process)
        for _, module in modules:
            if hasattr(module, "impl") and hasattr(module, "process_weights_after_loading"):
                module.process_weights_after_loading(dtype)


def _in_place(name: str, module: Any, process: Any) -> None:
    """Run `process(module)`, and restore each Parameter that it replaced.

    AscendUnquantizedFusedMoEMethod wraps the same memory in new Parameters (vllm_ascend/ops/fused_moe.py:989). They
    would lack `weight_loader`, and a compiled graph or a list of Parameters would hold on to the old ones.
    """
    before = {key: (one, _address(one)) for key, one in module.named_parameters(recurse=False)}
    process(module)
    for key, (old, address) in before.items():
        new = module._parameters.get(key)
        if new is None or _address(new) != address:
            raise RuntimeError(
                f"rollout-offload: {type(module.quant_method).__name__}.process_weights_after_loading has moved "
                f"{name}.{key} to another address or layout, so the next load_weights would write wrong values. "
                f"This version of vLLM or vllm-ascend is not the one of this adaptation: run `npu-rl verify`."
            )
        module._parameters[key] = old


def _address(parameter: Any) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return parameter.data_ptr(), tuple(parameter.shape), parameter.stride()
