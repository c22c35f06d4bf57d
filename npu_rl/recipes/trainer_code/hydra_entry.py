"""The folder of the trainer's configuration, from `@hydra.main` of its entry point."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from npu_rl.common.bounded import syntax_tree
from npu_rl.recipes.trainer_code.config_tree import ModuleFault
from npu_rl.recipes.trainer_code.source_files import read_source
from npu_rl.recipes.trainer_code.syntax_nodes import text_of


@dataclass(frozen=True)
class EntryPoint:
    """The arguments of `@hydra.main` in the trainer's module.

    Attributes:
        folder: The folder of the configuration files.
        config: The name of the default configuration, if it is given.
        where: file:line of the call.
    """

    folder: Path
    config: str | None
    where: str


def entry_point(code: Path, module: str) -> EntryPoint:
    """Find the configuration folder of a module such as verl.trainer.main_ppo. Raises ModuleFault."""
    path, tree = require_module(code, module)
    name = path.relative_to(code).as_posix()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("hydra.main", "main"):
            given = {item.arg: text_of(item.value) for item in node.keywords}
            folder, config = given.get("config_path"), given.get("config_name")
            if folder is not None:
                return EntryPoint((path.parent / folder).resolve(), config, f"{name}:{node.lineno}")
    raise ModuleFault(f"{module} has no @hydra.main with a config_path", f"{name}:1")


def require_module(code: Path, module: str) -> tuple[Path, ast.Module]:
    """Return the file of a module and its syntax tree. Raises ModuleFault if it is missing or can't be parsed."""
    parts = module.split(".")
    if not all(part.isidentifier() for part in parts):
        raise ModuleFault(f"{module!a} is not the name of a module", "trainer.module")
    path = code.joinpath(*parts).with_suffix(".py")
    content = read_source(path)
    tree = None if content is None else syntax_tree(content)
    if tree is None:
        raise ModuleFault(f"the code has no module {module}", path.relative_to(code).as_posix())
    return path, tree
