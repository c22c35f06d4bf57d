"""The installed command, as pip, pipx and uv lay it: it finds its Python and its package, and no variable's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from tests.cli.conftest import Installed, bare_env, packages
from tests.support import ROOT, ok, run_program

HERE = f"python{sys.version_info[0]}.{sys.version_info[1]}"
SITE = f"lib/{HERE}/site-packages"
SHELLS = [shell for shell in ("dash", "bash", "busybox", "ksh", "zsh") if shutil.which(shell)]


@pytest.fixture
def hostile(tmp_path: Path) -> dict[str, str]:
    """Every variable of Python's that leads to code leads to a stray file, or to nowhere."""
    stray = tmp_path / "stray"
    for folder in (stray, stray / SITE):
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("sitecustomize", "usercustomize", "npu_rl", "signal", "typer", "os"):
            (folder / f"{name}.py").write_text("import posix\nposix.write(2, b'stray')\nposix._exit(77)\n")
    (stray / SITE / "stray.pth").write_text("import posix; posix._exit(78)\n")
    named = dict.fromkeys(
        ("PYTHONPATH", "PYTHONUSERBASE", "PYTHONPYCACHEPREFIX", "PYTHONSTARTUP"), str(stray)
    )
    nowhere = dict.fromkeys(
        ("PYTHONHOME", "PYTHONPLATLIBDIR", "PYTHONEXECUTABLE", "__PYVENV_LAUNCHER__"), "/nowhere"
    )
    others = {
        "PYTHONWARNINGS": "error::npu_rl.X",
        "PYTHONINSPECT": "1",
        "PYTHONSAFEPATH": "",
        "PYTHONCASEOK": "1",
    }
    return bare_env(tmp_path) | named | nowhere | others


def answer(program: Path | str, env: dict[str, str], cwd: Path | str | None = None) -> str:
    """What `npu-rl --version` says. It has to say nothing on standard error."""
    done = Installed(Path(program)).run("--version", env=env, cwd=Path(cwd or "/"))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


# -- the script itself ---------------------------------------------------------------------------------


def test_no_variable_of_pythons_leads_to_code(installed: Installed, hostile: dict[str, str]) -> None:
    assert answer(installed.program, hostile).startswith("npu-rl ")


@pytest.mark.parametrize("shell", SHELLS)
def test_it_finds_itself_through_links(
    installed: Installed, hostile: dict[str, str], tmp_path: Path, shell: str
) -> None:
    """An absolute link to a relative one through a linked folder, and called by every kind of name."""
    (tmp_path / "real folder/a").mkdir(parents=True)
    (tmp_path / "linked").symlink_to("real folder/a")
    (tmp_path / "real folder/second").symlink_to(os.path.relpath(installed.program, tmp_path / "real folder"))
    (tmp_path / "linked/first").symlink_to("../second")
    (tmp_path / "-npu rl").symlink_to(tmp_path / "linked/first")
    (tmp_path / "npu-rl").symlink_to("linked/first")
    run = [*([shell, "sh"] if shell == "busybox" else [shell])]
    env = hostile | {"CDPATH": "/", "PATH": f"{tmp_path}:{hostile['PATH']}"}
    for words in (["-c", '"$0" --version', "-npu rl"], ["npu-rl", "--version"], ["./-npu rl", "--version"]):
        done = run_program([*run, *words], env=env, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), words
        assert done.stdout.startswith("npu-rl ")


@pytest.mark.parametrize(
    "first_lines",
    [
        "#!{python}\n",
        "#!{python} -E\n",
        "#!/bin/sh\n'''exec' '{python}' \"$0\" \"$@\"\n' '''\n",
        "#!/bin/sh\n'''exec' \"{python}\" -E \"$0\" \"$@\"\n' '''\n",
        "#!/bin/sh\n'''exec' \"$(dirname -- \"$(realpath -- \"$0\")\")\"/'python' \"$0\" \"$@\"\n' '''\n",
    ],
    ids=["pip", "pipx", "a space in it", "both", "relocatable"],
)
def test_the_interpreter_is_what_the_installer_wrote(
    installed: Installed, hostile: dict[str, str], tmp_path: Path, first_lines: str
) -> None:
    home = tmp_path / "with a space"
    shutil.copytree(installed.program.parents[1], home, symlinks=True)
    inner = home / "bin/npu-rl-python"
    text = inner.read_text().partition("\n")[2]
    inner.write_text(first_lines.format(python=home / "bin/python") + text)
    assert answer(home / "bin/npu-rl", hostile).startswith("npu-rl ")


def test_an_incomplete_installation_says_so(
    installed: Installed, hostile: dict[str, str], tmp_path: Path
) -> None:
    def complaint() -> str:
        done = Installed(tmp_path / "npu-rl").run("--version", env=hostile)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        return done.stderr

    shutil.copy(installed.program, tmp_path)
    assert "npu-rl-python" in complaint()
    (tmp_path / "npu-rl-python").write_text("#!/gone/bin/python\n")
    assert "/gone/bin/python" in complaint()
    (tmp_path / "npu-rl-python").write_text("")
    assert "no interpreter" in complaint()
    base = os.path.realpath(sys.executable)
    (tmp_path / "npu-rl-python").write_text(
        (ROOT / "npu_rl/cli/launcher/npu-rl-python").read_text().replace("#!python", f"#!{base}")
    )
    assert "has no npu_rl" in complaint()


def test_what_users_set_to_see_is_kept(installed: Installed, tmp_path: Path) -> None:
    """The variables that run no code work; those of a run's processes are in the environment as they were."""
    env = bare_env(tmp_path) | {"PYTHONPATH": "/cann", "PYTHONUSERBASE": "/base", "PYTHONUTF8": "0"}
    code = "import os, sys; print(sys.flags.dont_write_bytecode, sys.flags.utf8_mode, sys.flags.ignore_environment)\n"
    code += "print(os.environ['PYTHONPATH'], os.environ['PYTHONUSERBASE'])\n"
    folder = tmp_path / "bin"
    folder.mkdir()
    shutil.copy(installed.program, folder)
    inner = (ROOT / "npu_rl/cli/launcher/npu-rl-python").read_text()
    python = installed.program.with_name("python")
    (folder / "npu-rl-python").write_text(
        inner.replace("#!python", f"#!{python}").replace("    from npu_rl.cli import program\n", "    program = exit\n")
        .replace("\nprogram()\n", "\n" + code)
    )  # fmt: skip
    done = ok(run_program([folder / "npu-rl"], env=env))
    assert done.stdout == "1 0 1\n/cann /base\n"
    del env["PYTHONUTF8"], env["PYTHONDONTWRITEBYTECODE"]
    done = ok(run_program([folder / "npu-rl"], env=env | {"LC_ALL": "C.UTF-8"}))
    assert done.stdout.startswith("0 0 1\n")


# -- laid by installers --------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The wheel of these sources, built once for all test processes. Building needs hatchling, from an index."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if worker_id != "master" else base) / "wheel-for-all"
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            done = pip("wheel", "--no-deps", "-w", folder, ROOT)
            if done.returncode and not os.environ.get("NPU_RL_REQUIRE_PYPI"):
                pytest.skip(f"no wheel can be built here: {done.stderr.strip().splitlines()[-1]}")
            assert done.returncode == 0, done.stderr
    (found,) = folder.glob("npu_rl-*.whl")
    return found


def pip(*args: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PIP_BREAK_SYSTEM_PACKAGES": "1", **(env or {})}
    environment.pop("PYTHONPATH", None)
    return run_program([sys.executable, "-m", "pip", *map(str, args)], env=environment, cwd="/")


def install(*args: str | Path, env: dict[str, str] | None = None) -> None:
    ok(
        pip(*args, "--quiet", "--no-deps", "--no-index", "--no-compile", env=env)
    )  # 300 files that nobody imports


def marked(site: Path) -> None:
    """Let this installation tell its version as `mine`, and find what it needs in the tests' packages."""
    (site / "npu_rl/__init__.py").write_text("__version__ = 'mine'\n")
    (site / "needs.pth").write_text("\n".join(packages()) + "\n")


@pytest.mark.second
@pytest.mark.pypi
def test_pip_in_a_virtual_environment(wheel: Path, hostile: dict[str, str], tmp_path: Path) -> None:
    home = tmp_path / "a venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    install("--python", home / "bin/python", "install", wheel)
    marked(home / SITE)
    assert answer(home / "bin/npu-rl", hostile) == "npu-rl mine\n"
    by_hand = [home / "bin/python", home / "bin/npu-rl-python", "--version"]
    done = ok(run_program(by_hand, env=bare_env(tmp_path)))
    assert done.stdout == "npu-rl mine\n"
    (tmp_path / "linked").symlink_to(home)
    assert answer(tmp_path / "linked/bin/npu-rl", hostile) == "npu-rl mine\n"
    ok(pip("--python", home / "bin/python", "uninstall", "--yes", "npu-rl"))
    assert not list(home.glob("bin/npu-rl*"))


@pytest.mark.second
@pytest.mark.pypi
@pytest.mark.parametrize("base", [None, "a base of one's own"])
def test_pip_for_a_user(wheel: Path, hostile: dict[str, str], tmp_path: Path, base: str | None) -> None:
    python = os.path.realpath(sys.executable)
    env = {"HOME": hostile["HOME"], **({"PYTHONUSERBASE": str(tmp_path / base)} if base else {})}
    install("--python", python, "install", "--user", "--ignore-installed", wheel, env=env)
    place = tmp_path / base if base else Path(hostile["HOME"], ".local")
    marked(place / SITE)
    assert answer(place / "bin/npu-rl", hostile) == "npu-rl mine\n"


@pytest.mark.pypi
@pytest.mark.second
def test_pip_into_a_folder(wheel: Path, hostile: dict[str, str], tmp_path: Path) -> None:
    install("install", "--target", tmp_path / "place", wheel)
    marked(tmp_path / "place")
    assert answer(tmp_path / "place/bin/npu-rl", hostile) == "npu-rl mine\n"


@pytest.mark.second
@pytest.mark.pypi
def test_pip_editable(wheel: Path, hostile: dict[str, str], tmp_path: Path) -> None:
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    ok(pip("--python", home / "bin/python", "install", "--quiet", "--no-deps", "--editable", ROOT))
    (home / SITE / "needs.pth").write_text("\n".join(packages()) + "\n")
    assert answer(home / "bin/npu-rl", hostile).startswith("npu-rl ")


@pytest.mark.pypi
@pytest.mark.skipif(not os.environ.get("NPU_RL_INSTALLERS"), reason="NPU_RL_INSTALLERS=1 brings pipx and uv")
@pytest.mark.parametrize("tool", ["pipx", "uv tool", "uv venv", "uv editable"])
def test_other_installers(wheel: Path, hostile: dict[str, str], tmp_path: Path, tool: str) -> None:
    tools = tmp_path / "tools"
    subprocess.run([sys.executable, "-m", "venv", tools], check=True)
    ok(pip("--python", tools / "bin/python", "install", "--quiet", tool.split()[0]))
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | {"HOME": hostile["HOME"]}
    env |= {"UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", ""), "UV_CACHE_DIR": str(tmp_path / "cache")}
    venv = tmp_path / "a venv"
    commands: dict[str, list[list[str | Path]]] = {
        "pipx": [["pipx", "install", "--python", sys.executable, wheel]],
        "uv tool": [["uv", "tool", "install", "--python", sys.executable, wheel]],
        "uv venv": [
            ["uv", "venv", "--relocatable", "--python", sys.executable, venv],
            ["uv", "pip", "install", "--python", venv / "bin/python", wheel],
        ],
        "uv editable": [
            ["uv", "venv", "--python", sys.executable, venv],
            ["uv", "pip", "install", "--python", venv / "bin/python", "--editable", ROOT],
        ],
    }
    for program, *words in commands[tool]:
        ok(run_program([tools / "bin" / program, *words], env=env, cwd=tmp_path))
    folder = Path(hostile["HOME"], ".local/bin") if tool in ("pipx", "uv tool") else venv / "bin"
    assert answer(folder / "npu-rl", hostile).startswith("npu-rl ")
