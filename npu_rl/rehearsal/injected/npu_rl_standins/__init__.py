"""Stand-ins for parts that a CPU lacks, installed at run time without editing the code tree.

Each module says what it stands in for, why, and what is therefore not proven. `sitecustomize` installs them in every
process of a run, as hooks that act right after the import of what they change, so that nothing large is imported
before the trainer does. They use the standard library, and torch once it is imported.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from .hooks import after_import

KNOWN = ("cpu", "rollout")
_CPU = (
    *(
        "config_modules",
        "torch_cpu",
        "gloo",
        "fsdp",
        "checkpoint_writer",
        "verl_device",
        "verl_engines",
        "verl_patches",
        "seed",
        "server_seeds",
    ),
    *("fault", "update_probabilities", "hold", "full_metrics", "float_log_probs"),
)


def install(names: Iterable[str]) -> None:
    """Install the named sets: `cpu` (device, gloo, FSDP, seeds) and `rollout` (with its own copy of the weights).

    Raises ValueError for an unknown name.
    """
    for name in names:
        if name == "cpu":
            for part in _CPU:
                module = importlib.import_module(f"{__name__}.{part}")
                for target, change in getattr(module, "HOOKS", {}).items():
                    after_import(target, change)
                if hasattr(module, "install"):
                    module.install()
        elif name == "rollout":
            from . import rollout

            rollout.install()
        else:
            raise ValueError(f"NPU_RL_STANDINS has {name!r}; known are {', '.join(KNOWN)}")
