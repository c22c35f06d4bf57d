"""The stand-ins come in with Python's own start-up hook, or the process does not start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from npu_rl.common.python_roots import INJECTED, REHEARSAL


def run(code: str, *path: Path, standins: str | None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [INJECTED, REHEARSAL, *path]))}
    env.pop("NPU_RL_STANDINS", None)
    if standins is not None:
        env["NPU_RL_STANDINS"] = standins
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


def test_nothing_is_imported_unless_it_is_asked_for() -> None:
    done = run("import sys; print('npu_rl_standins' in sys.modules)", standins=None)
    assert done.stdout == "False\n", done.stderr


def test_installing_imports_nothing_heavy() -> None:
    code = (
        "import sys; print('npu_rl_standins' in sys.modules, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    assert run(code, standins="cpu").stdout == "True False False\n"


def test_an_unknown_set_ends_the_process() -> None:
    done = run("print('it went on')", standins="cpu,gpu")
    assert done.returncode == 70
    assert "it went on" not in done.stdout
    assert "'gpu'" in done.stderr and "cpu, rollout" in done.stderr


def test_a_sitecustomize_of_the_users_runs_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.FROM_USER = __file__\n")
    done = run("import sitecustomize; print(FROM_USER, sitecustomize.__file__)", tmp_path, standins="cpu")
    theirs = str(tmp_path / "sitecustomize.py")
    assert done.stdout.split() == [theirs, theirs], done.stderr
