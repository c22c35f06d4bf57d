"""Run MindSpeed-RL's own cli/preprocess_data.py, unchanged, without the trainer's packages.

    python npu_rl_mindspeed_rl_data.py CODE CONFIG [KEY=VALUE...]

`import mindspeed_rl` imports the whole trainer: Ray, vLLM, Megatron, MindSpeed-LLM (mindspeed_rl/__init__.py@62e9928).
The preprocessor needs none of them, so the packages it goes through are entered without running their __init__.py; a
name that one of these would have imported is looked up in the file that the __init__.py names.
"""

from __future__ import annotations

import ast
import importlib
import runpy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

_PACKAGES = ("mindspeed_rl", "mindspeed_rl.config_cls", "mindspeed_rl.datasets", "mindspeed_rl.utils")


class LazyPackage(ModuleType):
    """A package whose __init__.py is not run. Its names are imported one by one, on demand."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name)
        self.__path__ = [str(folder)]
        self.__file__ = str(folder / "__init__.py")
        self._places: dict[str, tuple[str, str]] = {}
        # `data prepare` has proven the tree: what could exhaust the parser here could run as well.
        for node in ast.parse((folder / "__init__.py").read_bytes()).body:
            if isinstance(node, ast.ImportFrom) and node.module:
                module = f"{name}.{node.module}" if node.level == 1 else node.module
                for item in node.names:
                    self._places[item.asname or item.name] = (module, item.name)

    def __getattr__(self, wanted: str) -> Any:
        if wanted.startswith("_") or wanted not in self._places:
            raise AttributeError(f"{self.__name__} has no attribute {wanted}")
        module, name = self._places[wanted]
        return getattr(importlib.import_module(module), name)


def main() -> None:
    """Install the packages, and run the script as if from its own command line."""
    code, *arguments = sys.argv[1:]
    sys.path.insert(0, code)
    for name in _PACKAGES:
        sys.modules[name] = LazyPackage(name, Path(code).joinpath(*name.split(".")))
    script = Path(code) / "cli" / "preprocess_data.py"
    sys.argv = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
