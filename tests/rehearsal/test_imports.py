"""What a run imports is imported module by module in a real process, whatever it does there."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from npu_rl.common.errors import NpuRlError
from npu_rl.common.process import RUN_VARIABLE
from npu_rl.recipes.recipe.load_recipe import load_recipe
from npu_rl.rehearsal.child_process import TrainingChild
from npu_rl.rehearsal.level_imports import (
    ImportReport,
    ModulesOfRun,
    cause_of,
    modules_of_run,
    rehearse_imports,
)
from tests.code_trees import lay as lay_files
from tests.training.processes import FORKS, lives, new_id, wait_for

pytestmark = [pytest.mark.second, pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")]

TRIES = "try:\n    import no_such_package\nexcept ImportError"
MODULES = {
    "__init__": "",
    "entry": "import p.inner",
    "good": "from p import helper\nX = helper.X",
    "helper": "X = 1",
    "space/part": "import json",
    "absent": "import no_such_package.part",
    "absent_too": "from p.absent import x",
    "wrapped": f"{TRIES} as e:\n    raise RuntimeError('please install it') from e",
    "wrapped_silently": f"{TRIES}:\n    raise RuntimeError('please install it')",
    "optional": f"{TRIES}:\n    no_such_package = None",
    "goes_on": f"{TRIES}:\n    no_such_package = None\nX = no_such_package.jit",
    "goes_on_by_name": f"{TRIES}:\n    pass\nraise ValueError('No_such_package has no version')",
    "asserts": f"{TRIES}:\n    pass\nassert False, 'args is not initialized'",
    "refuses": f"{TRIES}:\n    pass\nraise ValueError('a size below 0')",
    "goes_wrong": f"{TRIES}:\n    pass\nX = undefined",
    "second_choice": f"{TRIES}:\n    import another_absent",
    "older_choice": f"{TRIES}:\n    import p.never_was",
    "lost": "import p.never_was",
    "lost_below": "from p.helper.deeper import y",
    "elsewhere": "import q.bridge",
    "built": "import p._C",
    "misnamed": "from p.helper import Y",
    "newer": "from json.decoder import JSONNewerDecoder",
    "inner": "X = 1\nimport p.outer\nZ = p.outer.Y",
    "outer": "from p.inner import X\nY = X",  # can't be the first that is imported
    "unsupported": "class NoCpuVersion(NotImplementedError):\n    pass\nraise NoCpuVersion('x has none')",
    "strange": "class Odd(Exception):\n    def __str__(self):\n        raise ValueError\nraise Odd",
    "path": "raise OSError(f'no {__file__}')",
    "leaves": "import sys\nsys.exit('enough')",
    "vanishes": "import os\nprint('last words', flush=True)\nos._exit(4)",
    "crashes": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
    "interrupts": "raise KeyboardInterrupt",
    "stuck": "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True:\n    pass",
    "prints": "import sys\nfor _ in range(3000):\n    print('x' * 1000)\n    print('y' * 1000, file=sys.stderr)",
    "closes": "import os\nos.closerange(3, 256)",
    "reads": "import sys\nassert sys.stdin.read() == ''",
    "writes": "open('left_here', 'w').write('x')",
    "changes": "import p.helper\np.helper.X = 2\nimport sys\nsys.path.clear()",
}
FAULTS = {
    "AssertionError: args is not initialized": ["asserts"],
    "ImportError: cannot import name 'Y' from 'p.helper'": ["misnamed"],
    "KeyboardInterrupt": ["interrupts"],
    "NameError: name 'undefined' is not defined": ["goes_wrong"],
    "OSError: no p/path.py": ["path"],
    "Odd": ["strange"],
    "SystemExit: enough": ["leaves"],
    "ValueError: a size below 0": ["refuses"],
    "exited 4": ["vanishes"],
    "hung": ["stuck"],
    "signal 11": ["crashes"],
    "the tree lacks p.helper.deeper": ["lost_below"],
    "the tree lacks p.never_was": ["lost"],
}
NOT_PROVEN = {
    "NoCpuVersion: x has none": ["unsupported"],
    "needs another_absent": ["second_choice"],
    "needs json.decoder.JSONNewerDecoder": ["newer"],
    "needs no_such_package": [
        "absent",
        "absent_too",
        "goes_on",
        "goes_on_by_name",
        "older_choice",
        "wrapped",
        "wrapped_silently",
    ],
    "needs p._C": ["built"],
    "needs q.bridge": ["elsewhere"],  # q has no __init__.py
}


def lay(code: Path, modules: Mapping[str, str]) -> Path:
    for name, text in modules.items():
        file = code / "p" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return code


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(file.relative_to(folder)): (file.stat().st_mtime_ns, file.stat().st_size)
        for file in folder.rglob("*")
    }


def imported(
    code: Path,
    entry: str,
    environment: Mapping[str, str],
    limit: float = 60.0,
    *,
    patched: bool = True,
    python: Path = Path(sys.executable),
) -> ImportReport:
    """Import each module of p, whose files a patch changes, or not."""
    names = sorted(".".join(file.relative_to(code).with_suffix("").parts) for file in code.glob("p/**/*.py"))
    modules = (entry, *({name.removesuffix(".__init__") for name in names} - {entry}))
    files = [str(file.relative_to(code)) for file in code.glob("p/**/*.py")]
    of_run = ModulesOfRun(modules, frozenset({entry}), frozenset(files if patched else ()))
    child = TrainingChild(code, python, environment)
    return rehearse_imports(child, of_run, lambda _: None, limit=limit)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[ImportReport, Path, bool]:
    code = lay(tmp_path_factory.mktemp("code"), MODULES)
    (code / "q").mkdir()
    before = snapshot(code)
    environment = {"PATH": os.environ["PATH"], "HOME": str(code.parent), RUN_VARIABLE: new_id()}
    found = imported(code, "p.entry", environment, 8.0)
    return found, code, snapshot(code) == before


def test_faults_are_told_from_missing_packages(report: tuple[ImportReport, Path, bool]) -> None:
    for fault, expected in ((True, FAULTS), (False, NOT_PROVEN)):
        found: dict[str, list[str]] = {}
        for one in report[0].failures:
            if one.fault is fault:
                found.setdefault(one.cause, []).append(one.module.removeprefix("p."))
        assert found == expected
    assert (report[0].modules, report[0].ok) == (len(MODULES), False)


def test_failures_say_where(report: tuple[ImportReport, Path, bool]) -> None:
    failures = {failure.module: failure for failure in report[0].failures}
    assert failures["p.absent_too"].where == "p/absent.py:1"
    assert failures["p.vanishes"].message == "last words"
    assert failures["p.path"].where == "p/path.py:1"
    lines = report[0].lines()
    assert "FAILED p.path: OSError: no p/path.py at p/path.py:1" in lines
    assert "FAILED p.vanishes: exited 4: last words" in lines
    assert json.loads(json.dumps(report[0].to_json()))["failures"][0]["fault"] is True


@pytest.mark.parametrize("name", ["vllm._moe_C", "megatron.core.datasets.helpers_cpp", "vllm._version"])
def test_what_only_a_build_creates_is_a_package_that_is_missing(name: str) -> None:
    found: dict[str, Any] = {"outcome": "raised", "type": "ModuleNotFoundError", "text": "", "missing": name}
    assert cause_of({**found, "in_tree": True}) == f"needs {name}"
    assert cause_of({**found, "missing": "verl.CamelC", "in_tree": True}) == "the tree lacks verl.CamelC"


TREE = {
    "own/train.py": "def main():\n    from own.workers import Worker\n",
    "own/workers.py": "import engine.core",
    "own/never.py": "",
    "own/data.py": "",
    "engine/__init__.py": "",
    "engine/core.py": "",
    "engine/patched.py": "",
    "engine/two-words.py": "",
    "verl/workers/fsdp_workers.py": "",
    "npu_rl_runtime/__init__.py": "",
    "npu_rl_runtime/used.py": "",
    "setup.py": "",
}


def test_the_modules_are_those_of_a_step_of_patches_and_of_the_runtime(tmp_path: Path) -> None:
    lay_files(tmp_path, TREE)
    recipe = load_recipe("quickstart").recipe
    trainer = recipe.trainer.model_copy(
        update={"module": "own.train", "sections": {"data": "own.data.Config"}}
    )
    changed = {"engine/patched.py": "in place", "own/never.py": "superseded", "gone.py": "in place"}
    changed |= dict.fromkeys(("engine/two-words.py", "setup.py", "engine/notes.txt"), "in place")
    hunks = [{"root": "code", "file": file, "state": state} for file, state in changed.items()]
    report: Any = SimpleNamespace(receipt=SimpleNamespace(hunks=hunks))
    found = modules_of_run(tmp_path, recipe.model_copy(update={"trainer": trainer}), report)
    assert found.modules == (
        *("own.train", "engine.core", "engine.patched", "npu_rl_runtime.used"),
        *("own.data", "own.workers", "verl.workers.fsdp_workers"),
    )
    assert {"own.train", "own.data", "verl.workers.fsdp_workers"} < found.required
    assert {"engine/patched.py", "npu_rl_runtime/used.py"} < found.files and "own/never.py" not in found.files


def test_only_what_every_step_imports_and_patches_change_fails(
    tmp_path: Path, environment: Mapping[str, str]
) -> None:
    """A tree has modules for other releases of its packages."""
    code = lay(tmp_path / "code", {"__init__": "", "entry": "", "other": "raise ValueError('x')"})
    found = imported(code, "p.entry", environment, patched=False)
    assert found.ok and [one.cause for one in found.failures] == ["ValueError: x"]
    assert not imported(code, "p.entry", environment).ok
    assert not imported(code, "p.other", environment, patched=False).ok


def _import_until_interrupted(code: Path, environment: dict[str, str]) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        imported(code, "p", environment)


def test_an_interrupted_import_leaves_no_fork(tmp_path: Path) -> None:
    """Each is in a process group of its own, which only the killed child knew."""
    note = tmp_path / "pid"
    waits = f"import os, time\nopen({str(note)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    code = lay(tmp_path / "code", {"__init__": "", "waits": waits})
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), RUN_VARIABLE: new_id()}
    process = FORKS.Process(target=_import_until_interrupted, args=(code, environment))
    process.start()
    wait_for(lambda: note.is_file() and bool(note.read_text()), "the import of the module", 120)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    process.join(60)
    wait_for(lambda: not lives(int(note.read_text())), "the end of the fork")


def test_an_interpreter_that_cannot_begin_is_an_error(tmp_path: Path, environment: Mapping[str, str]) -> None:
    code = lay(tmp_path / "code", {"__init__": ""})
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such library >&2\nexit 127\n")
    broken.chmod(0o755)
    with pytest.raises(NpuRlError, match="did not finish") as caught:
        imported(code, "p", environment, python=broken)
    assert caught.value.why == "no such library"
