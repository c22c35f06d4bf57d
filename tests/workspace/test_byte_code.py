"""Byte code of a workspace: where it lies, that no other is read, and that none outlives an edit that was undone."""

from __future__ import annotations

import importlib.util
import json
import os
import py_compile
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from npu_rl.common import byte_code
from npu_rl.common.python_roots import INJECTED
from npu_rl.workspace.folder.receipt import read_receipt
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from tests.support import ok, run_program
from tests.workspace.stack import Stack, activated, look

KEY = byte_code.run_key("0123456789abcdef" * 4, "/python")
EVIL = "print('EVIL RAN')\n"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home of its own."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return home


def run(argv: list[str], env: Mapping[str, str]) -> str:
    base = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    done = ok(run_program(argv, env={**base, **env}))
    return done.stdout


def python(paths: WorkspacePaths, code: str, **env: str) -> str:
    """The output of Python in an activated shell."""
    return activated(paths, f'"{sys.executable}" -B -c "{code}"', **env)


def in_a_run(paths: WorkspacePaths, code: str, **env: str) -> str:
    """The output of Python as a process of a run on a host where only the key is known."""
    path = f"{INJECTED}{os.pathsep}{paths.code}"
    return run([sys.executable, "-c", code], {"PYTHONPATH": path, "NPU_RL_BYTE_CODE": KEY, **env})


def plant(source: Path, place: Path, text: str = EVIL) -> None:
    """Byte code of another text, which Python takes for the source's: same time, same size."""
    status = source.stat()
    other = source.with_name("other-text")
    other.write_text(text + "#" * (status.st_size - len(text)))
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    place.parent.mkdir(parents=True, exist_ok=True)
    py_compile.compile(str(other), cfile=str(place), dfile=str(source), doraise=True)
    other.unlink()


def cached(source: Path, prefix: Path | None = None) -> Path:
    """Where Python looks for its byte code: beside it, or below a prefix."""
    name = f"{source.stem}.{sys.implementation.cache_tag}.pyc"
    beside = source.parent / "__pycache__" / name
    return prefix / source.parent.relative_to("/") / name if prefix else beside


def test_a_planted_file_would_run_where_it_is_read(paths: WorkspacePaths) -> None:
    """What the next tests plant is what Python takes."""
    core = paths.code / "alpha/core.py"
    plant(core, cached(core))
    assert run([sys.executable, "-c", "import alpha.core"], {"PYTHONPATH": str(paths.code)}) == "EVIL RAN\n"


def test_no_byte_code_of_the_workspace_is_read(paths: WorkspacePaths) -> None:
    core = paths.code / "alpha/core.py"
    plant(core, cached(core))
    plant(core, cached(core, paths.hidden / "pycache"))
    code = "import alpha.core; print(alpha.core.line_10)"
    assert python(paths, code) == "11\n"
    assert in_a_run(paths, code) == "11\n"
    assert in_a_run(paths, code, PYTHONPYCACHEPREFIX=str(paths.hidden / "pycache")) == "11\n"
    # What judges a recipe has no folder of its own, and lays the tree on the path itself, perhaps.
    assert in_a_run(paths, code, NPU_RL_BYTE_CODE="") == "11\n"
    late = f"import sys; sys.dont_write_bytecode = False; sys.path.insert(0, {str(paths.code)!r}); {code}; import json"
    late += "; print(json.__cached__ is not None, alpha.core.__spec__.origin)"
    assert in_a_run(paths, late, NPU_RL_BYTE_CODE="", PYTHONPATH=str(INJECTED)) == f"11\nTrue {core}\n"
    report = look(paths)
    assert (report.ok, report.byte_code) == (True, [str(cached(core).relative_to(paths.root))])


def test_it_is_kept_and_used_again(paths: WorkspacePaths) -> None:
    core = paths.code / "alpha/core.py"
    for run_it, key in ((python, None), (in_a_run, KEY)):
        run_it(paths, "import sys; sys.dont_write_bytecode = False; import alpha.core")
        prefix = Path(byte_code.place(key or byte_code.shell_key(read_receipt(paths).digest)))
        assert cached(core, prefix).is_file()
        plant(core, cached(core, prefix))
        assert run_it(paths, "import alpha.core") == "EVIL RAN\n"  # only this user can write there


def test_shells_take_the_place_that_python_does(paths: WorkspacePaths, tmp_path: Path) -> None:
    expected = Path(byte_code.place(byte_code.shell_key(read_receipt(paths).digest)))
    for shell in filter(shutil.which, ("bash", "zsh")):
        for cache in ("", "relative", str(tmp_path / "a cache"), str(tmp_path / "größe $HOME")):
            place = Path(activated(paths, 'printf %s "$PYTHONPYCACHEPREFIX"', shell, XDG_CACHE_HOME=cache))
            home = Path(cache) if cache.startswith("/") else Path(os.environ["HOME"], ".cache")
            assert place == home / expected.relative_to(Path(os.environ["HOME"], ".cache"))
            for folder in (place, place.parent, place.parent.parent):
                assert folder.stat().st_mode & 0o022 == 0


def test_without_a_home(paths: WorkspacePaths) -> None:
    assert activated(paths, 'printf %s "$PYTHONPYCACHEPREFIX"', HOME="") == byte_code.NOWHERE
    assert in_a_run(paths, "import sys; print(sys.pycache_prefix)", HOME="") == f"{byte_code.NOWHERE}\n"


def test_what_nobody_uses_is_removed() -> None:
    used, old, mine = (Path(byte_code.place(key)) for key in (KEY, f"{'1' * 32}-shell", "thesis"))
    for folder in (old, mine):
        os.utime(folder, (1, 1))
    byte_code.remove_unused()
    assert used.is_dir() and mine.is_dir() and not old.exists()


def test_byte_code_is_told_of_in_both_forms(stack: Stack, paths: WorkspacePaths) -> None:
    core = paths.code / "alpha/core.py"
    plant(core, cached(core))
    told = str(cached(core).relative_to(paths.root))
    done = ok(stack.run("verify", "-w", paths.root))
    assert f"byte code, not read by npu-rl or in an activated shell  {told}" in done.stdout
    assert json.loads(stack.run("verify", "-w", paths.root, "--json").stdout)["byte_code"] == [told]
    for number in range(30):
        shutil.copy(cached(core), cached(core).with_name(f"core.cpython-{number}.pyc"))
    shown = stack.run("verify", "-w", paths.root).stdout
    assert shown.count("not read by npu-rl") == 20
    assert "11 more files" in shown


def test_the_rule_needs_nothing_but_the_standard_library() -> None:
    """`sitecustomize` loads it in interpreters that have no npu-rl."""
    spec = importlib.util.find_spec("npu_rl.common.byte_code")
    assert spec is not None and spec.origin is not None
    code = f"import runpy; print(runpy.run_path({spec.origin!r})['NOWHERE'])"
    assert run([sys.executable, "-I", "-S", "-c", code], {}) == f"{byte_code.NOWHERE}\n"
