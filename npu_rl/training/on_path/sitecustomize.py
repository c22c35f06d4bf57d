"""Installs the stand-ins that NPU_RL_STANDINS names in every process of a run, Ray's workers included.

Python imports `sitecustomize` at start-up from the first folder of sys.path that has one. This folder stands
first in a run's PYTHONPATH and in no other's; a `sitecustomize` that would have run is run afterwards.
"""

import importlib
import importlib.machinery
import importlib.util
import os
import sys


def _install() -> None:
    wanted = os.environ.get("NPU_RL_STANDINS", "")
    if not wanted:
        return
    try:
        importlib.import_module("npu_rl_standins").install(wanted.split(","))
    except Exception:  # noqa: BLE001  `site` would print this and go on: half stood in for is worse than not started
        import traceback

        traceback.print_exc()
        print(
            "npu-rl: the stand-ins could not be installed; this process ends here.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(70)


def _go_on() -> None:
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  at every start of Python
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_install()
_go_on()
