"""The stand-in never claims to be what it isn't: probes, names, imports, devices, and the count of what was used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal

Python = Callable[..., "subprocess.CompletedProcess[str]"]


def test_it_says_that_it_is_a_standin(torch_npu: ModuleType) -> None:
    assert torch_npu.NPU_RL_STANDIN is True
    assert torch_npu.__version__.partition("+")[2] == "npu_rl.standin"
    assert torch.npu.is_available() is False
    assert torch.accelerator.current_accelerator() is None and not torch.accelerator.is_available()
    assert "stand-in" in torch.npu.get_device_name(0)
    assert "stand-in" in torch.npu.get_device_properties(0).name
    with pytest.raises(PackageNotFoundError):
        version("torch_npu")


@pytest.mark.parametrize(
    "name",
    [
        "npu_moe_distribute_dispatch_v2",  # vllm_ascend/ops/fused_moe.py@v0.9.1rc2 takes another path with it
        "empty_with_swapped_memory",  # MindSpeed's features_manager@7ff818c
        "npu_ring_attention_update",
    ],
)
def test_a_probe_gets_the_true_answer(torch_npu: ModuleType, name: str) -> None:
    """verl, MindSpeed and vllm-ascend look names up, to take another path."""
    assert not hasattr(torch_npu, name) and getattr(torch_npu, name, None) is None
    with pytest.raises(NotImplementedError, match=f"torch_npu.{name} has no CPU version.*stand-in.*lists"):
        getattr(torch_npu, name)(1, 2)
    assert hasattr(torch_npu, "npu_cross_entropy_loss")
    assert hasattr(torch_npu, "npu_moe_token_unpermute_with_routing_map")
    assert hasattr(torch_npu._C._distributed_c10d.ProcessGroupHCCL.Options, "hccl_config")


def test_hccl_groups_cant_be_made(torch_npu: ModuleType) -> None:
    with pytest.raises(NotImplementedError, match="ProcessGroupHCCL has no CPU version"):
        torch_npu._C._distributed_c10d.ProcessGroupHCCL(None, 0, 1)
    options = torch_npu._C._distributed_c10d.ProcessGroupHCCL.Options()
    options.hccl_config = {"hccl_buffer_size": 200}
    assert torch_npu._C._distributed_c10d.ProcessGroupHCCL.Options().hccl_config == {}


GRAPH_BACKEND = """
import torch

@torch.compile(dynamic=True, backend="npu")
def doubled(x):
    return 2 * x

try:
    doubled(torch.ones(2))
except Exception as error:
    print(type(error).__name__, "no CPU version" in str(error))
"""


def test_the_graph_backend_can_be_named_and_compiles_nothing(python: Python) -> None:
    """vLLM 0.7.3 names it in a decorator, which a backend that isn't there fails; without dynamo it is not used."""
    shown = python("-c", GRAPH_BACKEND, TORCHDYNAMO_DISABLE="0").stdout.split()
    assert shown == ["BackendCompilerFailed", "True"]
    assert python("-c", GRAPH_BACKEND).stdout == ""


def test_placeholders_can_be_taken_and_not_called(torch_npu: ModuleType) -> None:
    import acl
    import torchair
    from torch_npu.profiler import profile
    from torch_npu.utils.flops_count import FlopsCounter
    from torchair.ge import DataType, Tensor

    assert all(module.NPU_RL_STANDIN for module in (acl, torchair, sys.modules["torch_npu.profiler"]))
    for taken, name in [
        (acl.rt.get_mem_info, "acl.rt.get_mem_info"),
        (DataType.DT_BF16, "torchair.ge.DataType.DT_BF16"),
        (FlopsCounter, "torch_npu.utils.flops_count.FlopsCounter"),
        (profile, "torch_npu.profiler.profile"),
    ]:
        with pytest.raises(NotImplementedError, match=f"{name} has no CPU version"):
            taken()

    class Derived(Tensor):  # at the top of a file, that must work
        pass

    @torchair.register_fx_node_ge_converter(None)
    def converter(x: Tensor | None = None) -> int:
        return 3

    assert converter() == 3 and Derived is not None
    from torch_npu.utils.collect_env import get_cann_version

    assert get_cann_version() == "not known"
    with pytest.raises(ImportError):
        import torchair.nothing_of_the_kind
    with pytest.raises(ImportError):
        from torch_npu.optim import NpuFusedAdamW  # noqa: F401


def test_every_op_is_called_by_a_test(torch_npu: ModuleType) -> None:
    from torch_npu.registry import OPS

    assert torch_npu.npu_format_cast(torch_npu, 29) is torch_npu
    texts = "".join(file.read_text() for file in Path(__file__).parent.glob("test_*.py"))
    assert len(OPS) > 14 and [name for name in OPS if f"torch_npu.{name}(" not in texts] == []


def test_npu_devices_are_the_cpu(torch_npu: ModuleType) -> None:
    device = torch.device("npu:0")
    with device:
        within = torch.zeros(2)
    for tensor in (
        within,
        torch.ones(2, device=device),
        torch.tensor([1.0], device="npu"),
        torch.arange(3, device="npu:1", pin_memory=True),
        torch.zeros(1).new_zeros(2, device=device),
        torch.zeros(2).to("npu"),
        torch.zeros(2).to(device=device, dtype=torch.int32),
        torch.zeros(2).npu(),
        torch.zeros(2).pin_memory(),
        torch.nn.Linear(2, 2, device="npu").to(device).npu().weight,
    ):
        assert tensor.device.type == "cpu" and tensor.is_npu is False
    assert torch.zeros(2, device="meta").device.type == "meta"
    assert torch.zeros(2).to("meta").device.type == "meta"
    assert torch.zeros(2).to(torch.float64).dtype == torch.float64


def test_loading_from_an_npu_and_scripting_still_work(torch_npu: ModuleType, tmp_path: Path) -> None:
    torch.save({"x": torch.ones(2)}, tmp_path / "x.pt")
    for loaded in (
        torch.load(tmp_path / "x.pt", map_location="npu:0"),
        torch.load(tmp_path / "x.pt", torch.device("npu")),
    ):
        assert loaded["x"].tolist() == [1, 1]

    def made(n: int) -> Any:
        return torch.zeros([n])

    made.__annotations__ = {"n": int, "return": torch.Tensor}
    assert torch.jit.script(made)(3).shape == (3,)


def test_kernels_for_the_npu_serve_cpu_tensors(torch_npu: ModuleType) -> None:
    library = torch.library.Library("npu_rl_test", "DEF")
    library.define("double(Tensor x) -> Tensor")
    torch.library.impl(library, "double", "PrivateUse1")(lambda x: x * 2)
    assert torch.ops.npu_rl_test.double(torch.ones(2)).tolist() == [2, 2]
    # An operator that has a kernel for the CPU keeps it, and so do torch's own.
    library.impl("double", lambda x: x * 3, "PrivateUse1")
    assert torch.ops.npu_rl_test.double(torch.ones(2)).tolist() == [2, 2]
    import torch.distributed.fsdp._fully_shard._fsdp_collectives as registered  # for PrivateUse1 and for the CPU

    assert torch._C._dispatch_has_kernel_for_dispatch_key("fsdp::chunk_cat", "PrivateUse1")
    assert registered is not None


TRANSFERRED = """
import torch
available, is_cuda = torch.cuda.is_available(), torch.zeros(1).is_cuda
from torch_npu.contrib import transfer_to_npu
import torch_npu
assert torch.cuda.is_available() is available is False and is_cuda is torch.zeros(1).is_cuda is False
index = torch.cuda.current_device()
for tensor in (
    torch.zeros(2, device="cuda"), torch.zeros(2, device=index), torch.zeros(2, device=torch.device("cuda", 0)),
    torch.zeros(2).cuda(), torch.zeros(2).to(index), torch.zeros(2).to("cuda:0"), torch.nn.Linear(2, 2).cuda().weight,
):
    assert tensor.device.type == "cpu"
torch.cuda.synchronize(); torch.cuda.empty_cache(); torch.cuda.set_device(index)
with torch.cuda.stream(torch.cuda.Stream()), torch.cuda.device(0):
    torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
torch.cuda.manual_seed(3); a = torch.rand(2)
torch.manual_seed(3); assert torch.equal(torch.rand(2), a)
state = torch.cuda.random.get_rng_state(); a = torch.rand(2)
torch.cuda.set_rng_state(state); assert torch.equal(torch.rand(2), a)
assert torch.zeros(1).type() == "torch.cuda.FloatTensor"
assert torch.zeros(1).bfloat16().type() == "torch.cuda.BFloat16Tensor"
assert torch.zeros(1, dtype=torch.int64).type() == "torch.LongTensor"
assert torch.zeros(1).type("torch.cuda.HalfTensor").dtype == torch.float16
assert torch.zeros(1).type(torch.float64).dtype == torch.float64
x = torch.nn.Parameter(torch.ones(3)); torch.optim.AdamW([x]).zero_grad()
import torch._dynamo.trace_rules
torch._dynamo.trace_rules.get_torch_obj_rule_map()
print("fine")
"""


def test_transfer_to_npu_makes_cuda_the_cpu(python: Python) -> None:
    assert python("-c", TRANSFERRED).stdout == "fine\n"
