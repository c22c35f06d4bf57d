"""Every module is imported on its own in a real process, whatever it does there."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from npu_rl.common.errors import NpuRlError
from npu_rl.common.process import RUN_VARIABLE
from npu_rl.rehearsal.level_imports import ImportReport, read_expected, rehearse_imports
from tests.support import ROOT
from tests.training.processes import FORKS, lives, new_id, wait_for

pytestmark = [pytest.mark.second, pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")]

TRIES = "try:\n    import no_such_package\nexcept ImportError"
MODULES = {
    "__init__": "",
    "good": "from p import helper\nX = helper.X",
    "helper": "X = 1",
    "space/inner": "import json",
    "absent": "import no_such_package.part",
    "absent_too": "from p.absent import x",
    "wrapped": f"{TRIES} as e:\n    raise RuntimeError('please install it') from e",
    "wrapped_silently": f"{TRIES}:\n    raise RuntimeError('please install it')",
    "optional": f"{TRIES}:\n    no_such_package = None",
    "second_choice": f"{TRIES}:\n    import another_absent",
    "older_choice": f"{TRIES}:\n    import p.never_was",
    "lost": "import p.never_was",
    "lost_below": "from p.helper.deeper import y",
    "built": "import p._C",
    "misnamed": "from p.helper import Y",
    "newer": "from json.decoder import JSONNewerDecoder",
    "strange": "class Odd(Exception):\n    def __str__(self):\n        raise ValueError\nraise Odd",
    "address": "raise TypeError(f'not {object()}')",
    "path": "raise OSError(f'no {__file__}')",
    "leaves": "import sys\nsys.exit('enough')",
    "leaves_well": "import sys\nsys.exit()",
    "vanishes": "import os\nprint('last words', flush=True)\nos._exit(4)",
    "crashes": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
    "interrupts": "raise KeyboardInterrupt",
    "hangs": "import time\nwhile True:\n    time.sleep(60)",
    "stuck": "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True:\n    pass",
    "prints": "import sys\nfor _ in range(3000):\n    print('x' * 1000)\n    print('y' * 1000, file=sys.stderr)",
    "prints_for_ever": "while True:\n    print('x' * 10000)",
    "closes": "import os\nos.closerange(3, 256)",
    "reads": "import sys\nassert sys.stdin.read() == ''",
    "writes": "open('left_here', 'w').write('x')",
    "changes": "import p.helper\np.helper.X = 2\nimport sys\nsys.path.clear()",
}
CAUSES = {
    "ImportError: cannot import name 'Y' from 'p.helper'": ["misnamed"],
    "KeyboardInterrupt": ["interrupts"],
    "OSError: no p/path.py": ["path"],
    "Odd": ["strange"],
    "TypeError: not <object object at 0x…>": ["address"],
    "exited 0": ["leaves_well"],
    "exited 1": ["closes", "leaves"],
    "exited 4": ["vanishes"],
    "hung": ["hangs", "prints_for_ever", "stuck"],
    "needs another_absent": ["second_choice"],
    "needs json.decoder.JSONNewerDecoder": ["newer"],
    "needs no_such_package": ["absent", "absent_too", "older_choice", "wrapped", "wrapped_silently"],
    "needs p._C": ["built"],
    "signal 11": ["crashes"],
    "the tree lacks p.helper.deeper": ["lost_below"],
    "the tree lacks p.never_was": ["lost"],
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


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[ImportReport, Path, bool]:
    code = lay(tmp_path_factory.mktemp("code"), MODULES)
    before = snapshot(code)
    environment = {"PATH": os.environ["PATH"], "HOME": str(code.parent), RUN_VARIABLE: new_id()}
    told: list[str] = []
    found = rehearse_imports(code, ["p"], Path(sys.executable), environment, None, told.append, limit=4.0)
    assert told == [f"importing {len(MODULES)} modules of p, each on its own"]
    return found, code, snapshot(code) == before


def test_failures_are_grouped_by_cause(report: tuple[ImportReport, Path, bool]) -> None:
    found = {
        cause: sorted(module.removeprefix("p.") for module in modules)
        for cause, modules in report[0].causes.items()
    }
    assert found == {cause: sorted(modules) for cause, modules in CAUSES.items()}


def test_everything_else_was_imported(report: tuple[ImportReport, Path, bool]) -> None:
    failing = sum(len(modules) for modules in CAUSES.values())
    assert (report[0].modules, report[0].imported) == (len(MODULES), len(MODULES) - failing)


def test_nothing_is_written_into_the_tree(report: tuple[ImportReport, Path, bool]) -> None:
    assert report[2]
    assert not list(report[1].rglob("__pycache__"))


def test_failures_say_where(report: tuple[ImportReport, Path, bool]) -> None:
    failures = {failure.module: failure for failure in report[0].failures}
    assert failures["p.absent_too"].where == "p/absent.py:1"
    assert failures["p.vanishes"].message == "last words"
    assert failures["p.path"].where == "p/path.py:1"


def test_modules_of_other_packages_that_a_step_executes_are_imported_and_fail_only_by_a_fault(
    tmp_path: Path,
) -> None:
    """A package that the rehearsal's extras don't have is no fault; the committed list is about the packages alone."""
    code = lay(tmp_path / "code", {"__init__": "", "good": ""})
    for name, text in {
        "fine": "",
        "lacks": "import no_such_package",
        "wrong": "raise ValueError('x')",
    }.items():
        (code / f"{name}.py").write_text(text)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), RUN_VARIABLE: new_id()}
    told: list[str] = []
    found = rehearse_imports(
        code,
        ["p"],
        Path(sys.executable),
        environment,
        {},
        told.append,
        executed=["p.good", "fine", "lacks", "wrong"],
    )
    assert told == ["importing 2 modules of p and 3 others that a step executes, each on its own"]
    assert (found.modules, found.executed) == (5, 3)
    assert [failure.module for failure in found.newly_failing] == ["wrong"]
    assert found.lines()[0] == "3 of 5 modules import: of p and 3 that a step executes"


def test_a_module_that_a_step_executes_may_need_another_before_it(tmp_path: Path) -> None:
    """As Megatron-core 0.8's: `outer` and `inner` import each other, and only `inner` first works."""
    code = lay(tmp_path / "code", {"__init__": "", "main": "import inner"})
    (code / "inner.py").write_text("X = 1\nimport outer\nZ = outer.Y")
    (code / "outer.py").write_text("from inner import X\nY = X")
    (code / "never.py").write_text("raise ValueError('x')")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), RUN_VARIABLE: new_id()}
    found = rehearse_imports(
        code,
        ["p"],
        Path(sys.executable),
        environment,
        {},
        lambda _: None,
        executed=["inner", "outer", "never"],
        entry="p.main",
    )
    assert [failure.module for failure in found.failures] == ["never"]


def test_the_report_is_json_and_lines(report: tuple[ImportReport, Path, bool]) -> None:
    said = json.loads(json.dumps(report[0].to_json()))
    assert said["causes"]["signal 11"] == {"fault": True, "modules": ["p.crashes"], "where": None}
    assert not said["ok"]
    assert report[0].lines()[0] == f"{report[0].imported} of {len(MODULES)} modules import: of p"


def test_what_a_module_starts_does_not_live_on(
    tmp_path: Path, python: Path, environment: Mapping[str, str]
) -> None:
    note = tmp_path / "pid"
    starts = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(note)!r}, 'w').write(str(child.pid))"
    )
    code = lay(tmp_path / "code", {"__init__": "", "starts": starts})
    found = rehearse_imports(code, ["p"], python, environment, None, lambda _: None)
    assert found.ok
    wait_for(lambda: not lives(int(note.read_text())), "the end of what the module started")


def _import_until_interrupted(code: Path, environment: dict[str, str]) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        rehearse_imports(code, ["p"], Path(sys.executable), environment, None, lambda _: None)


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


def test_a_relative_tree_and_a_path_already_given_are_the_same(
    tmp_path: Path, python: Path, environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lay(tmp_path / "code", {"__init__": "", "good": "import p"})
    monkeypatch.chdir(tmp_path)
    given = {**environment, "PYTHONPATH": str(tmp_path / "code")}
    assert rehearse_imports(Path("code"), ["p"], python, given, None, lambda _: None).imported == 2


def test_an_interpreter_that_cannot_begin_is_an_error(tmp_path: Path, environment: Mapping[str, str]) -> None:
    code = lay(tmp_path / "code", {"__init__": ""})
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such library >&2\nexit 127\n")
    broken.chmod(0o755)
    with pytest.raises(NpuRlError, match="did not finish") as caught:
        rehearse_imports(code, ["p"], broken, environment, None, lambda _: None)
    assert caught.value.why == "no such library"


@pytest.mark.rehearsal
def test_part_of_the_real_tree_fails_only_as_the_committed_list_says(
    code_tree: Path, python: Path, environment: Mapping[str, str]
) -> None:
    pytest.importorskip("ray")
    listed = ROOT / "manifests" / "quickstart.imports.yaml"
    expected = read_expected(listed.read_text(encoding="utf-8"), listed.name)
    packages = ["verl.trainer", "verl.single_controller", "verl.utils.reward_score", "npu_rl_runtime"]
    found = rehearse_imports(code_tree, packages, python, environment, expected, lambda _: None)
    assert found.ok, found.lines()
    assert found.modules > 40
