"""torch's configuration modules, pickled by name.

Ray's cloudpickle knows modules by their exact type, and torch makes `torch._dynamo.config` and the like modules of a
subclass (torch/utils/_config_module.py). A worker class that refers to one, as those of verl_patches do after
MindSpeed-LLM's patches, could not be sent to its actor. Not so with the torch that the trainer runs with on NPUs.
"""

from __future__ import annotations

import copyreg
import importlib
from types import ModuleType
from typing import Any

from .used import count


def _install_in(module: ModuleType) -> None:
    original = module.install_config_module

    def install_config_module(made: ModuleType) -> None:
        original(made)
        copyreg.pickle(type(made), _by_name)

    module.install_config_module = install_config_module  # type: ignore[attr-defined]


def _by_name(module: ModuleType) -> tuple[Any, tuple[str]]:
    count("torch configuration modules")
    return importlib.import_module, (module.__name__,)


HOOKS = {"torch.utils._config_module": _install_in}
