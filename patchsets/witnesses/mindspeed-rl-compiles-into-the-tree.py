"""Show whether MindSpeed-RL's start makes Megatron compile its dataset helpers in the tree.

Executed is `initialize_megatron` of cli/train_grpo.py, alone, with what it imports stood in for. Printed is what it
calls, in order. Megatron's `_compile_dependencies` (cli/train_grpo.py:471@62e9928) runs make in megatron/core/datasets
on rank 0 (megatron/core/datasets/utils.py:21@core_r0.8.0), which leaves helpers.*.so there.
"""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from npu_rl_standins.named_modules import NamedModules
from witness_common import show

SCRIPT, FUNCTION = Path("cli", "train_grpo.py"), "initialize_megatron"
ARGUMENTS = SimpleNamespace(
    use_checkpoint_args=False, use_deter_comp=False, rank=1, seed=1, data_parallel_random_init=False,
    lazy_mpu_init=False, tp_comm_overlap=False,
)  # fmt: skip
NOTED = {
    "megatron.training.arguments": ["parse_args", "validate_args"],
    "megatron.training.checkpointing": ["load_args_from_checkpoint"],
    "megatron.training.global_vars": ["set_global_variables"],
    "megatron.training.initialize": [
        "_set_random_seed", "_init_autoresume", "_compile_dependencies", "_initialize_tp_communicators",
    ],
}  # fmt: skip


def main() -> dict[str, Any]:
    called: list[str] = []

    def noting(name: str) -> Any:
        return lambda *_, **__: called.append(name)

    sys.meta_path.insert(0, NamedModules("megatron", "mindspeed_llm"))
    for module, functions in NOTED.items():
        vars(importlib.import_module(module)).update({name: noting(name) for name in functions})
    importlib.import_module("megatron.training").get_args = lambda: ARGUMENTS
    translator: Any = importlib.import_module("mindspeed_llm.training.arguments")
    translator.parse_args_decorator = lambda _: lambda *__: ARGUMENTS
    names: dict[str, Any] = {
        "sys": sys,
        "parse_args_from_config": noting("parse_args_from_config"),
        "torch": SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True)),
        "_initialize_distributed": noting("_initialize_distributed"),
    }
    body = ast.parse(SCRIPT.read_text(encoding="utf-8")).body
    alone: Any = [one for one in body if isinstance(one, ast.FunctionDef) and one.name == FUNCTION]
    exec(compile(ast.Module(alone, []), str(SCRIPT), "exec"), names)
    names[FUNCTION](config=None)
    return {"fault": "_compile_dependencies" in called, "called": called}


if __name__ == "__main__":
    show(main)
