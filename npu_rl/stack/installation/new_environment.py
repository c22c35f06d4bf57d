"""A virtual environment that npu-rl makes for a training: whole, or not at all."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from npu_rl.common.errors import HostError, SourceError, UsageError
from npu_rl.stack.installation.move_journal import InstallationFolder
from npu_rl.stack.installation.target_python import TargetPython, read_target, venv_target
from npu_rl.stack.pylocks.uv_program import run_uv


def environment_target(folder: Path, python: str) -> TargetPython:
    """Return the interpreter of a virtual environment, which is still to be made if the folder is empty or missing.

    Args:
        python: The version that it needs.

    Raises:
        UsageError: If something else is in the folder.
        HostError: If no interpreter of that version is found to make it with.
    """
    folder = folder.absolute()
    program = folder / "bin" / "python"
    begun = InstallationFolder(folder)
    if program.exists() and (begun.is_interrupted() or not begun.mark.exists()):
        found = read_target(str(program))
        if not found.venv:
            raise _not_one(folder, "It is the installation of a Python, not a virtual environment.")
        return found
    if os.path.lexists(folder) and not folder.is_dir():
        raise _not_one(folder, "It is not a folder.")
    if folder.is_dir() and any(folder.iterdir()) and not begun.mark.exists():
        raise _not_one(folder, "Something else is in it.")
    return venv_target(folder, _base(python))


def _base(python: str) -> TargetPython:
    if f"{sys.version_info[0]}.{sys.version_info[1]}" == python:
        return read_target(sys.executable)
    program = shutil.which(f"python{python}")
    if program is None:
        raise HostError(
            f"Python {python} is missing, to make the environment with",
            why=f"npu-rl runs with another, and PATH has no python{python}.",
            hint=f"Install Python {python}, then run again.",
        )
    return read_target(program)


@contextlib.contextmanager
def made_environment(target: TargetPython, base: str, variables: Mapping[str, str]) -> Iterator[None]:
    """Make a virtual environment, if it is absent; after an error it is gone again. Raises SourceError, HostError.

    Args:
        base: The version of Python that it gets.
        variables: uv's environment.
    """
    if not target.absent:
        yield
        return
    root = target.root
    made = [path for path in (root, *root.parents) if not path.exists()]
    root.mkdir(parents=True, exist_ok=True)
    folder = InstallationFolder(root)
    try:
        folder.inside.make(folder.path)
        if not folder.mark.exists():
            folder.inside.write(folder.mark, b"")
        _clear(folder)
        _make(root, _base(base).path, variables)
        yield
    except BaseException:
        if not folder.is_interrupted():
            _clear(folder)
            folder.inside.remove(folder.path)
            for path in made:
                with contextlib.suppress(OSError):
                    path.rmdir()
        raise


def _clear(folder: InstallationFolder) -> None:
    """Remove the content of an environment that has npu-rl's mark of a new one."""
    for path in folder.root.iterdir():
        if path != folder.path:
            folder.inside.remove(path)


def _make(root: Path, python: str, variables: Mapping[str, str]) -> None:
    words = ["venv", "--quiet", "--allow-existing", "--python", python, str(root)]
    done = run_uv(words, variables, root)
    if done.code != 0:
        raise SourceError(
            "The virtual environment can't be made",
            where=str(root),
            why=done.stderr.strip()[-1000:],
            hint=f"Try it by hand: {shlex.quote(python)} -m venv {shlex.quote(str(root))}",
        )


def _not_one(folder: Path, why: str) -> UsageError:
    return UsageError(
        "--venv names no virtual environment",
        where=str(folder),
        why=why,
        hint="Name a new folder, or a virtual environment.",
    )
