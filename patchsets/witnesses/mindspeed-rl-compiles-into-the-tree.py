"""Show whether MindSpeed-RL's start makes Megatron compile its dataset helpers in the tree.

Executed is `initialize_megatron` of cli/train_grpo.py, alone, with what it imports stood in for. Printed is what it
calls, in order. Megatron's `_compile_dependencies` (cli/train_grpo.py:471@62e9928) runs make in megatron/core/datasets
on rank 0 (megatron/core/datasets/utils.py:21@core_r0.8.0), which leaves helpers.*.so there.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

CALLED: list[str] = []
ARGUMENTS = SimpleNamespace(
    use_checkpoint_args=False, use_deter_comp=False, rank=1, seed=1, data_parallel_random_init=False,
    lazy_mpu_init=False, tp_comm_overlap=False,
)  # fmt: skip


def called(name: str, result: Any = None) -> Any:
    def function(*_: object, **__: object) -> Any:
        CALLED.append(name)
        return result

    return function


def stand_in(name: str, **names: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(names, __path__=[])
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)
    return module


for package in ("megatron", "megatron.core", "mindspeed_llm", "mindspeed_llm.training"):
    stand_in(package)
stand_in("megatron.core.parallel_state")
stand_in("megatron.training", get_args=lambda: ARGUMENTS)
stand_in("megatron.training.arguments", parse_args=called("parse"), validate_args=called("validate"))
stand_in("megatron.training.checkpointing", load_args_from_checkpoint=called("load"))
stand_in("megatron.training.global_vars", set_global_variables=called("variables"))
stand_in(
    "megatron.training.initialize",
    **{
        name: called(name)
        for name in (
            "_set_random_seed",
            "_init_autoresume",
            "_compile_dependencies",
            "_initialize_tp_communicators",
        )
    },
)
stand_in(
    "mindspeed_llm.training.arguments",
    parse_args_decorator=lambda _: lambda *__: ARGUMENTS,
)

source = Path("cli", "train_grpo.py").read_text(encoding="utf-8")
(function,) = [
    node
    for node in ast.parse(source).body
    if isinstance(node, ast.FunctionDef) and node.name == "initialize_megatron"
]
names: dict[str, Any] = {
    "sys": sys,
    "parse_args_from_config": called("configuration"),
    "torch": SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True)),
    "_initialize_distributed": called("_initialize_distributed"),
}
exec(compile(ast.Module([function], []), "train_grpo.py", "exec"), names)
names["initialize_megatron"](config=None)
print(json.dumps({"fault": "_compile_dependencies" in CALLED, "called": CALLED}))
