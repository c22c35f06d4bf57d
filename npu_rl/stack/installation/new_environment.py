"""The virtual environment of `--venv`: one that exists, or a new one. Nothing in it is ever removed."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from npu_rl.common.errors import HostError, SourceError, UsageError
from npu_rl.common.interpreter import Interpreter, read_interpreter
from npu_rl.stack.pylocks.uv_program import run_uv

_MADE_BY_UV = {"bin", "lib", "lib64", "pyvenv.cfg", ".gitignore", ".lock", "CACHEDIR.TAG"}


def program_of(folder: Path) -> Path | None:
    """Return the interpreter of a virtual environment; None if there is none yet."""
    program = folder / "bin" / "python"
    return program if program.exists() and (folder / "pyvenv.cfg").exists() else None


def environment_target(folder: Path, python: str) -> Interpreter:
    """Return the interpreter of a virtual environment, which is still to be made if uv has not completed it.

    Args:
        python: The version that it needs.

    Raises:
        UsageError: If something else is in the folder.
        HostError: If no interpreter of that version is found to make it with.
    """
    program = program_of(folder)
    if program is not None:
        return read_interpreter(str(program))
    if folder.exists() and not (folder.is_dir() and {one.name for one in folder.iterdir()} <= _MADE_BY_UV):
        raise UsageError(
            "--venv names no virtual environment",
            where=str(folder),
            why="Something else is there.",
            hint="Name a new folder, or a virtual environment.",
        )
    path, base = str(folder / "bin" / "python"), read_interpreter(_base(python))
    return replace(base, path=path, prefix=str(folder), managed=False, packages={}, own_needs=(), absent=True)


def make_environment(target: Interpreter, variables: Mapping[str, str]) -> None:
    """Make a virtual environment that is absent. Raises SourceError, HostError.

    Args:
        variables: uv's environment.
    """
    folder, base = Path(target.prefix), _base(target.short)
    folder.mkdir(parents=True, exist_ok=True)
    done = run_uv(["venv", "--quiet", "--allow-existing", "--python", base, str(folder)], variables, folder)
    if done.code != 0:
        raise SourceError(
            "The virtual environment can't be made",
            where=str(folder),
            why=done.stderr.strip()[-1000:],
            hint=f"Try it by hand: {shlex.quote(base)} -m venv {shlex.quote(str(folder))}",
        )


def _base(python: str) -> str:
    if f"{sys.version_info[0]}.{sys.version_info[1]}" == python:
        return sys.executable
    program = shutil.which(f"python{python}")
    if program is None:
        raise HostError(
            f"Python {python} is missing, to make the environment with",
            why=f"npu-rl runs with another, and PATH has no python{python}.",
            hint=f"Install Python {python}, then run again.",
        )
    return program
