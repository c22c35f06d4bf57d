"""Set up every process of a run, Ray's workers included.

It ends with npu-rl, and gets the run's variables, this host's folder for the run's byte code (NPU_RL_BYTE_CODE), and
the stand-ins that NPU_RL_STANDINS names. A process of a run can be asked for its stacks. A process without a folder
for byte code, which judges a recipe, reads no byte code of a workspace.
Python imports `sitecustomize` at start-up from the first folder of sys.path that has one. This folder is first in a
run's PYTHONPATH and in no other; a `sitecustomize` that would have run is run afterwards.
"""

import importlib
import importlib.machinery
import importlib.util
import os
import sys

_PACKAGE = os.path.abspath(f"{__file__}/../../..")  # noqa: PTH100  at every start of Python


def _set_byte_code_folder() -> None:
    """Set the bytecode folder from its key. Each node has its own folder, so only the key is sent."""
    key = os.environ.get("NPU_RL_BYTE_CODE", "")
    if not key:
        return
    spec = importlib.util.spec_from_file_location("npu_rl_byte_code", f"{_PACKAGE}/common/byte_code.py")
    if spec is None or spec.loader is None:
        return
    rule = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rule)
    rule.adopt(key)


class _WorkspaceSources(importlib.machinery.SourceFileLoader):
    """Loader of a workspace's modules that ignores bytecode beside a source, which could be stale."""

    def path_stats(self, path):  # type: ignore[no-untyped-def]
        """Raise OSError, which keeps Python from reading and writing bytecode (importlib's SourceLoader.get_code)."""
        if sys.pycache_prefix is None:
            raise OSError("byte code of a workspace is not read")
        return super().path_stats(path)


def _workspace_finder(folder: str) -> importlib.machinery.FileFinder:
    """Path hook that finds modules in a workspace's code. Raises ImportError for other folders."""
    code = os.path.abspath(folder)  # noqa: PTH100
    while os.path.basename(code) != "code" or not os.path.isdir(f"{code}/../.npu-rl"):  # noqa: PTH119, PTH112
        code, below = os.path.dirname(code), code  # noqa: PTH120
        if code == below:
            raise ImportError("not the code of a workspace", path=folder)
    if not os.path.isdir(folder):  # noqa: PTH112
        raise ImportError("not a folder", path=folder)
    return importlib.machinery.FileFinder(
        folder,
        (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
        (_WorkspaceSources, importlib.machinery.SOURCE_SUFFIXES),
    )


def _apply_run_variables() -> None:
    """Complete the run's variables in a Ray worker, once (npu_rl_nodes.py sends them).

    NPU_RL_VARIABLES names all that the run sets; other NPU_RL_* variables, from the shell that started Ray, are
    removed. NPU_RL_QUOTED has values that Ray would have expanded. If the node had no PYTHONPATH, Ray leaves an empty
    entry at its end, which means the working folder; if it had the run's, its entries are there twice. Both are
    cleaned up.
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


def _install_standins() -> None:
    wanted = os.environ.get("NPU_RL_STANDINS", "")
    if not wanted:
        return
    try:
        importlib.import_module("npu_rl_standins").install(wanted.split(","))
        importlib.import_module("npu_rl_weight_sync.watched_syncs").install()
        importlib.import_module("npu_rl_recompute").install()
    except Exception:  # noqa: BLE001  `site` would print it and continue, with incomplete stand-ins
        import traceback

        traceback.print_exc()
        print(
            "npu-rl: the stand-ins could not be installed; this process ends here.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(70)


def _end_with_parent() -> None:
    """Have the kernel end this process with npu-rl, or with the raylet that npu-rl started (Linux).

    npu-rl's own children are its driver and what makes models; Ray starts its gcs, raylet and log monitor so that they
    end with the driver (kernel_fate_share, ray/_private/node.py@2.42.1), but not the raylet's children: its agent lived
    on for 70 seconds. Of npu-rl id and start are known: it may have ended before this, and its id be used again.
    The kernel looks at the thread that started a process; npu-rl's and the raylet's are their main ones.
    """
    npu_rl, _, started = os.environ.get("NPU_RL_PARENT", "").partition(" ")
    if not npu_rl or sys.platform != "linux":
        return
    parent = str(os.getppid())
    if parent in (npu_rl, os.environ.get("RAY_RAYLET_PID")):
        import ctypes

        ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
    try:
        with open(f"/proc/{npu_rl}/stat", "rb") as file:  # noqa: PTH123  at every start of Python
            fields = file.read().rpartition(b") ")[2].split()
    except OSError:
        os._exit(70)
    if fields[0] in b"ZX" or fields[19].decode() != started or parent != str(os.getppid()):
        os._exit(70)


def _write_stacks_on_a_signal() -> None:
    """Have a run's process write its stacks on a signal."""
    if os.environ.get("NPU_RL_RUN"):
        importlib.import_module("npu_rl_stack_signal").register()


def _run_next_sitecustomize() -> None:
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  at every start of Python
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_end_with_parent()  # before its variable is removed
_apply_run_variables()
_set_byte_code_folder()
if sys.pycache_prefix is None:
    sys.path_hooks.insert(0, _workspace_finder)
    sys.path_importer_cache.clear()  # of folders that were looked at for `sitecustomize`
_install_standins()
_write_stacks_on_a_signal()
_run_next_sitecustomize()
