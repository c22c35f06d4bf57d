"""MindSpeed's own operators against torch; and MindSpeed itself, with Megatron-core, training on the stand-in."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from npu_rl.common.python_roots import NPU

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.rehearsal

Python = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def operators(torch_npu: ModuleType) -> Any:
    """What MindSpeed's builders return from `load`."""
    sys.path.insert(0, str(NPU))
    try:
        from npu_rl_standins_npu import mindspeed_ops
    finally:
        sys.path.remove(str(NPU))
    return mindspeed_ops.Operators()


@pytest.mark.parametrize("kind", ["ends", "sizes", "list"])
@pytest.mark.parametrize("sizes", [[2, 0, 4], [1, 2, 3]])
def test_grouped_products_forward_and_backward(operators: Any, sizes: list[int], kind: str) -> None:
    x, weight = torch.randn(6, 4, requires_grad=True), torch.randn(3, 4, 5, requires_grad=True)
    owner = [expert for expert, size in enumerate(sizes) for _ in range(size)]
    expected = torch.stack([x[row] @ weight[expert] for row, expert in enumerate(owner)])
    groups = torch.tensor(sizes)
    groups, group_list_type = (groups, 1) if kind == "sizes" else (groups.cumsum(0), 0)
    groups = groups.tolist() if kind == "list" else groups
    tensors = [x.detach()], [weight.detach()]
    (got,) = operators.npu_gmm(*tensors, [], groups, 0, group_list_type)
    torch.testing.assert_close(got, expected.detach())

    upstream = torch.randn_like(expected)
    dx, dw = torch.autograd.grad(expected, (x, weight), upstream)
    mine = operators.npu_gmm_backward([upstream], *tensors, groups, group_list_type)
    torch.testing.assert_close(mine[0][0], dx)
    torch.testing.assert_close(mine[1][0], dw)
    assert mine[2] == []
    fused = operators.npu_gmm_backward_fusion([upstream], tensors[1], groups, group_list_type)
    torch.testing.assert_close(fused[0][0], dx)
    if kind != "sizes":
        kept = torch.randn(12, 5)
        sums = kept.clone()
        operators.npu_groupmatmul_add_fp32(tensors[0][0], upstream, groups, sums)
        torch.testing.assert_close(sums - kept, dw.view(12, 5), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("bias", "ends", "group_type", "told"),
    [
        ([], [2, 5], 0, "the groups end at .*5.*, there are 6 rows"), ([], [6], 0, "1 groups and 2 weights"),
        ([], [2, 6], None, "group_type=None"), ([torch.zeros(5)], [2, 6], 0, "bias="),
    ],
)  # fmt: skip
def test_grouped_products_refuse(
    operators: Any, bias: list[Any], ends: list[int], group_type: int | None, told: str
) -> None:
    with pytest.raises((ValueError, NotImplementedError), match=f"npu_gmm: {told}"):
        operators.npu_gmm([torch.zeros(6, 4)], [torch.zeros(2, 4, 5)], bias, ends, group_type, 0)


def test_the_other_operators(operators: Any) -> None:
    grad_output, total_input = torch.randn(6, 3).bfloat16(), torch.randn(6, 4).bfloat16()
    kept = torch.randn(3, 4)
    sums = kept.clone()
    operators.npu_matmul_add_fp32(grad_output, total_input, sums)
    torch.testing.assert_close(
        sums, kept + torch.einsum("tn,tk->nk", grad_output.float(), total_input.float()), rtol=1e-4, atol=1e-5
    )

    weight = torch.randn(4)
    reference = weight.clone().requires_grad_()
    optimizer = torch.optim.AdamW([reference], lr=0.1, weight_decay=0.2)
    first, second = torch.zeros(4), torch.zeros(4)
    for step in (1, 2, 3):
        reference.grad = torch.randn(4)
        optimizer.step()
        numbers = (step, 0.1, 0.9, 0.999, 0.2, 1e-8, False, False)
        operators.npu_apply_fused_adamw_v2(weight, reference.grad, first, second, torch.ones(1), *numbers)
    torch.testing.assert_close(weight, reference.detach(), rtol=1e-5, atol=1e-6)


def test_an_operator_that_isnt_there_says_its_name(operators: Any) -> None:
    with pytest.raises(NotImplementedError, match=r"mindspeed\.npu_ffn has no CPU version"):
        operators.npu_ffn(1)
    assert not hasattr(operators, "reuse_data_ptr")


BUILDER = """
import torch_npu  # builders of MindSpeed import it while they are imported
class MindSpeedOpBuilder:
    def load(self, verbose=True): raise RuntimeError("compiles")
"""


@pytest.mark.parametrize(
    "code",
    [
        "import torch_npu, mindspeed.op_builder.builder as b",
        "import mindspeed.op_builder.builder as b; import mindspeed.later",  # the builder is first to import torch_npu
    ],
)
def test_the_compiler_is_replaced_whoever_imports_first(python: Python, tmp_path: Path, code: str) -> None:
    folder = tmp_path / "mindspeed" / "op_builder"
    folder.mkdir(parents=True)
    for file, text in [
        ("builder.py", BUILDER),
        ("__init__.py", ""),
        ("../__init__.py", ""),
        ("../later.py", ""),
    ]:
        (folder / file).write_text(text)
    code += "; print(type(b.MindSpeedOpBuilder().load()).__name__, b.__loader__.get_source(b.__name__)[:17].split())"
    assert python("-c", code, path=(tmp_path,)).stdout.startswith("Operators ['")
