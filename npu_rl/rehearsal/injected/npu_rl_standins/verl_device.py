"""verl's device selection, which raises on a CPU for lack of a collective backend; gloo becomes the backend.

Source: verl/utils/device.py:79 (get_nccl_backend) at 0.5.0. Parameters that FSDP offloads lie on the CPU already:
loading them would ask for the device "cpu:cpu" (verl/utils/fsdp_utils.py:186 at 796871d). What has to be imported
after CUDA is there (verl/utils/torch_functional.py:598 at 796871d) can be imported on a CPU at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from .used import count


def _install_in(module: ModuleType) -> None:
    def get_nccl_backend() -> str:
        count("verl.utils.device.get_nccl_backend")
        return "gloo"

    def get_device_id() -> str:
        return _CpuIndex("cpu")

    module.get_nccl_backend = get_nccl_backend  # type: ignore[attr-defined]
    module.get_device_id = get_device_id  # type: ignore[attr-defined]


class _CpuIndex(str):
    """The device `cpu`, which is 0 where a device string is formed.

    verl passes the index to torch as a device, and forms "cpu:0" with it (verl/utils/megatron_utils.py:137,
    bucketed_weight_transfer.py:177@v0.8.0); torch.cpu.current_device() is "cpu", and "cpu:cpu" is no device.
    """

    def __format__(self, _: str) -> str:
        return "0"


def _load_on_cpu(module: ModuleType) -> None:
    offload = module.offload_fsdp_model_to_cpu

    def load_fsdp_model_to_gpu(model: object) -> None:
        count("verl.utils.fsdp_utils.load_fsdp_model_to_gpu")
        offload(model)

    module.load_fsdp_model_to_gpu = load_fsdp_model_to_gpu  # type: ignore[attr-defined]


def _need_no_cuda(module: ModuleType) -> None:
    @contextmanager  # which decorates a function, too
    def check_cuda_is_available() -> Iterator[None]:
        count("verl.utils.torch_functional.check_cuda_is_available")
        yield

    module.check_cuda_is_available = check_cuda_is_available  # type: ignore[attr-defined]


HOOKS = {
    "verl.utils.device": _install_in,
    "verl.utils.fsdp_utils": _load_on_cpu,
    "verl.utils.torch_functional": _need_no_cuda,
}
