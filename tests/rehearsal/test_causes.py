"""Causes are the same words on every machine, and tell what is missing from what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from npu_rl.rehearsal.level_imports import cause_of, is_fault


def missing(name: str, in_tree: bool) -> dict[str, Any]:
    text = f"No module named {name!r}"
    return {
        "outcome": "raised",
        "type": "ModuleNotFoundError",
        "text": text,
        "missing": name,
        "in_tree": in_tree,
    }


@pytest.mark.parametrize(
    ("found", "cause", "fault"),
    [
        (missing("flash_attn", False), "needs flash_attn", False),
        (missing("torch.distributed._x", False), "needs torch.distributed._x", False),
        (missing("vllm._C", True), "needs vllm._C", False),
        (missing("vllm._moe_C", True), "needs vllm._moe_C", False),
        (missing("vllm_ascend.vllm_ascend_C", True), "needs vllm_ascend.vllm_ascend_C", False),
        (
            missing("megatron.core.datasets.helpers_cpp", True),
            "needs megatron.core.datasets.helpers_cpp",
            False,
        ),
        (missing("vllm._version", True), "needs vllm._version", False),
        (
            missing("vllm.vllm_flash_attn.flash_attn_interface", True),
            "needs vllm.vllm_flash_attn.flash_attn_interface",
            False,
        ),
        (missing("verl.workers.gone", True), "the tree lacks verl.workers.gone", True),
        (missing("verl.CamelC", True), "the tree lacks verl.CamelC", True),
        ({"outcome": "hung"}, "hung", True),
        ({"outcome": "signal", "status": 11}, "signal 11", True),
        ({"outcome": "exited", "status": 1}, "exited 1", True),
        ({"outcome": "raised", "type": "SystemExit", "text": "3", "status": 3}, "exited 3", True),
        (
            {"outcome": "raised", "type": "ImportError", "text": "cannot import name 'X' from 'Y'"},
            "ImportError: cannot import name 'X' from 'Y'",
            True,
        ),
        ({"outcome": "raised", "type": "KeyError", "text": ""}, "KeyError", True),
        (
            {"outcome": "raised", "type": "TypeError", "text": "<object at 0x7f326f7bd6c0> is odd"},
            "TypeError: <object at 0x…> is odd",
            True,
        ),
    ],
)
def test_cause(found: dict[str, Any], cause: str, fault: bool) -> None:
    assert cause_of(found) == cause
    assert is_fault(cause) is fault
