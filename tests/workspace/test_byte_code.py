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
from tests.workspace.stack import Stack, activated, found, look

KEY = byte_code.run_key("0123456789abcdef" * 4, "/python", "state")
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


def test_processes_of_a_run_hand_it_on(paths: WorkspacePaths) -> None:
    code = "import os, sys; print(sys.pycache_prefix, os.environ['PYTHONPYCACHEPREFIX'])"
    assert in_a_run(paths, code).split() == [byte_code.place(KEY)] * 2


def test_a_run_shares_with_runs_of_the_same_receipt_interpreter_and_files() -> None:
    key = byte_code.run_key("a" * 64, "/python", "state")
    assert key == byte_code.run_key("a" * 64, "/python", "state")
    others = {
        byte_code.run_key(*said)
        for said in (("b" * 64, "/python", "state"), ("a" * 64, "/p", "state"), ("a" * 64, "/python", "s"))
    }
    assert len(others | {key}) == 4


@pytest.mark.parametrize("key", ["../../../x", "", f"{'0' * 32}-../x", "a/b", f"{'0' * 32}-a\n"])
def test_a_key_is_a_name(paths: WorkspacePaths, key: str) -> None:
    assert byte_code.place(key) == byte_code.NOWHERE
    code = "import sys; print(sys.pycache_prefix)"
    assert in_a_run(paths, code, NPU_RL_BYTE_CODE=key) in (
        "None\n" if not key else "",
        f"{byte_code.NOWHERE}\n",
    )


def test_shells_take_the_place_that_python_does(paths: WorkspacePaths, tmp_path: Path) -> None:
    expected = Path(byte_code.place(byte_code.shell_key(read_receipt(paths).digest)))
    for shell in filter(shutil.which, ("bash", "zsh")):
        for cache in ("", "relative", str(tmp_path / "a cache"), str(tmp_path / "größe $HOME")):
            place = Path(activated(paths, 'printf %s "$PYTHONPYCACHEPREFIX"', shell, XDG_CACHE_HOME=cache))
            home = Path(cache) if cache.startswith("/") else Path(os.environ["HOME"], ".cache")
            assert place == home / expected.relative_to(Path(os.environ["HOME"], ".cache"))
            for folder in (place, place.parent, place.parent.parent):
                assert folder.stat().st_mode & 0o777 == 0o700


def spoil_link(home: Path) -> None:
    (home / "elsewhere").mkdir(mode=0o700)
    (home / ".cache/npu-rl").mkdir(parents=True)
    (home / ".cache/npu-rl/byte-code").symlink_to(home / "elsewhere")


def spoil_mode(home: Path) -> None:
    (home / ".cache/npu-rl/byte-code").mkdir(parents=True)
    (home / ".cache/npu-rl/byte-code").chmod(0o770)


def spoil_owner(home: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs a folder of another user's")
    (home / ".cache/npu-rl/byte-code").mkdir(parents=True, mode=0o700)
    os.chown(home / ".cache/npu-rl/byte-code", 65534, 65534)


def spoil_file(home: Path) -> None:
    (home / ".cache").write_text("")


@pytest.mark.parametrize("spoil", [spoil_link, spoil_mode, spoil_owner, spoil_file])
def test_where_others_could_write_there_is_none(paths: WorkspacePaths, machine: Path, spoil: object) -> None:
    assert callable(spoil)
    spoil(machine)
    assert byte_code.place(KEY) == byte_code.NOWHERE
    assert activated(paths, 'printf %s "$PYTHONPYCACHEPREFIX"') == byte_code.NOWHERE
    core = paths.code / "alpha/core.py"
    plant(core, cached(core))
    code = "import alpha.core; print(alpha.core.line_10)"
    assert python(paths, code) == in_a_run(paths, code) == "11\n"


def test_without_a_home(paths: WorkspacePaths) -> None:
    assert activated(paths, 'printf %s "$PYTHONPYCACHEPREFIX"', HOME="") == byte_code.NOWHERE
    assert in_a_run(paths, "import sys; print(sys.pycache_prefix)", HOME="") == f"{byte_code.NOWHERE}\n"


def test_a_home_in_the_workspace_is_none(paths: WorkspacePaths) -> None:
    """A copy of it would bring byte code along."""
    assert activated(paths, 'printf %s "$PYTHONPYCACHEPREFIX"', HOME=str(paths.root)) == byte_code.NOWHERE
    cache = str(paths.code / "cache")
    assert activated(paths, 'printf %s "$PYTHONPYCACHEPREFIX"', XDG_CACHE_HOME=cache) == byte_code.NOWHERE


def edit_run_restore(paths: WorkspacePaths) -> None:
    """All within what Python's check of byte code can't tell: same size, same time."""
    module = paths.code / "beta/b.py"
    shutil.copy2(module, paths.root / "backup")
    status = module.stat()
    module.write_text("B = 2\n")
    os.utime(module, ns=(status.st_atime_ns, status.st_mtime_ns))
    code = "import sys; sys.dont_write_bytecode = False; import beta.b; print(beta.b.B)"
    assert python(paths, code) == "2\n"
    shutil.copy2(paths.root / "backup", module)


@pytest.mark.parametrize("deep", [False, True])
def test_after_verify_a_shell_runs_what_was_verified(paths: WorkspacePaths, deep: bool) -> None:
    for _ in range(2):
        edit_run_restore(paths)
        assert python(paths, "import beta.b; print(beta.b.B)") == "2\n"  # as Python does anywhere
        assert found(paths, deep=deep) == []
        assert python(paths, "import beta.b; print(beta.b.B)") == "1\n"


def test_verify_leaves_byte_code_of_files_that_nobody_touched(paths: WorkspacePaths) -> None:
    prefix = Path(byte_code.place(byte_code.shell_key(read_receipt(paths).digest)))
    assert found(paths) == []
    python(paths, "import sys; sys.dont_write_bytecode = False; import beta.b")
    made = cached(paths.code / "beta/b.py", prefix).stat()
    assert found(paths) == found(paths, deep=True) == []
    assert cached(paths.code / "beta/b.py", prefix).stat() == made


def test_verify_makes_no_folder_where_no_shell_was(paths: WorkspacePaths, machine: Path) -> None:
    assert found(paths) == []
    assert os.listdir(machine) == []


def test_the_state_of_the_files_is_another_after_an_edit_that_was_undone(paths: WorkspacePaths) -> None:
    before = look(paths, deep=True).state()
    assert look(paths).state() == look(paths, deep=True).state() == before
    edit_run_restore(paths)
    after = look(paths, deep=True)
    assert after.ok
    assert after.state() != before


def test_what_nobody_uses_is_removed(machine: Path) -> None:
    used = Path(byte_code.place(KEY))
    old = Path(byte_code.place(f"{'1' * 32}-shell"))
    elsewhere = used.parent.with_name("other-host") / f"{'2' * 32}-shell"
    others = [used.parent / name for name in (f"{'3' * 32}-answers", f"{'4' * 32}-shell.gone-0123456789ab")]
    mine = [used.parent / "thesis", elsewhere.parent / "backup-2026"]
    for folder in (old, elsewhere, *others, *mine):
        (folder / "x").mkdir(parents=True)
        os.utime(folder, (1, 1))
    byte_code.remove_unused()
    assert sorted(p.name for p in used.parent.iterdir()) == sorted([used.name, "thesis"])
    assert os.listdir(elsewhere.parent) == ["backup-2026"]


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
