"""Sets up every process of a run, Ray's workers included: the run's variables, the folder of this host for the run's
byte code (NPU_RL_BYTE_CODE), and the stand-ins that NPU_RL_STANDINS names.

Python imports `sitecustomize` at start-up from the first folder of sys.path that has one. This folder stands
first in a run's PYTHONPATH and in no other's; a `sitecustomize` that would have run is run afterwards.
"""

import importlib
import importlib.machinery
import importlib.util
import os
import sys

_PACKAGE = os.path.abspath(f"{__file__}/../../..")  # noqa: PTH100  at every start of Python


def _keep_byte_code_apart() -> None:
    """A node has a folder of its own, so the variable that names it does not travel; the key does."""
    key = os.environ.get("NPU_RL_BYTE_CODE", "")
    if not key:
        return
    spec = importlib.util.spec_from_file_location("npu_rl_byte_code", f"{_PACKAGE}/byte_code.py")
    if spec is None or spec.loader is None:
        return
    rule = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rule)
    rule.adopt(key)


def _take_variables() -> None:
    """Finish what Ray began with a run's variables (npu_rl_nodes.py): in a worker, once.

    NPU_RL_VARIABLES names all that the run sets: NPU_RL_* variables of other runs, from the shell that started
    Ray, go. NPU_RL_QUOTED holds values that Ray would have expanded. Where the node had no PYTHONPATH, an empty
    entry is left at its end, which means the working folder; where it had the run's, these are there twice.
    """
    names = os.environ.pop("NPU_RL_VARIABLES", None)
    if names is None:
        return
    quoted = os.environ.pop("NPU_RL_QUOTED", None)
    for name in {name for name in os.environ if name.startswith("NPU_RL_")} - set(names.split(",")):
        del os.environ[name]
    if quoted is not None:
        import json

        os.environ.update(json.loads(quoted))
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(entry for entry in given if entry))
    here = os.path.abspath("")  # noqa: PTH100
    if "" in given and here not in given:
        sys.path[:] = [entry for entry in sys.path if entry not in ("", here)]


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


_take_variables()
_keep_byte_code_apart()
_install()
_go_on()
