"""The training interpreter that a user chose for a workspace, stored in the user's state folder.

A workspace is not trusted, so its receipt chooses no program that a command starts: it repeats the choice for other
users and hosts, who are told of it. A copy of a workspace starts without a choice.
"""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npu_rl.common.errors import HostError, WorkspaceError
from npu_rl.common.printable import one_line
from npu_rl.common.user_state import keep_facts, kept_facts
from npu_rl.workspace.folder.receipt import read_receipt, setup_hint
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths

_KIND, _SUBJECT = "interpreter", "workspace"


def choose(given: str | None, paths: WorkspacePaths | None, setup: Mapping[str, Any] | None = None) -> str:
    """Return the interpreter that a command should start.

    Args:
        given: `--python`.
        paths: The workspace, if there is one.
        setup: That of its receipt, if it has been read.

    Returns:
        The given one, else the one chosen for the workspace, else the one that runs npu-rl.

    Raises:
        HostError: If the chosen one does not exist on this host.
        WorkspaceError: If the receipt names another that this user has not chosen.
    """
    if given is not None or paths is None:
        return given or sys.executable
    chosen = chosen_for(paths)
    if chosen is not None:
        if not Path(chosen).is_file():
            raise HostError(
                "The interpreter that was chosen for this workspace does not exist here",
                where=chosen,
                hint="Name one for this command: --python PATH\n"
                f"or choose another: {setup_hint(paths, setup, '--python PATH')}",
            )
        return chosen
    setup = read_receipt(paths).setup if setup is None else setup
    named = other_interpreter(setup)
    if named is not None:
        raise _not_chosen(paths, named, setup)
    return sys.executable


def other_interpreter(setup: Mapping[str, Any]) -> str | None:
    """Return the interpreter in a receipt's `setup`, if it exists and isn't the one that runs npu-rl."""
    named = str(setup.get("python") or "")
    with contextlib.suppress(OSError, ValueError):
        if not Path(named).is_absolute() or not Path(named).is_file():
            return None
        ours = Path(sys.executable)
        # By folder: the interpreter of a virtual environment is a link to one that has other packages.
        if ours.parent.samefile(Path(named).parent) and ours.samefile(named):
            return None
        return named
    return None


def chosen_for(paths: WorkspacePaths) -> str | None:
    """Return the interpreter that this user chose for a workspace; None without a readable choice."""
    kept = kept_facts(_KIND, _SUBJECT, paths.root)
    python = None if kept is None else kept.get("python")
    return python if isinstance(python, str) else None


def keep_choice(paths: WorkspacePaths, python: str) -> None:
    """Store the user's choice for a workspace. Raises OSError, or ValueError for a path with a NUL."""
    keep_facts(_KIND, _SUBJECT, paths.root, {"python": python})


def _not_chosen(paths: WorkspacePaths, named: str, setup: Mapping[str, Any]) -> WorkspaceError:
    python = shlex.quote(named) if named.isprintable() else "PATH"
    return WorkspaceError(
        "The workspace names an interpreter that you have not chosen",
        where=str(paths.receipt),
        why=f"It names {one_line(named)}. The author of the workspace chose that, so no command starts it by itself.",
        hint=f"If you trust it: {setup_hint(paths, setup, f'--python {python}')}\n"
        f"For one command, add --python {python}; npu-rl's own is {shlex.quote(sys.executable)}.",
    )
