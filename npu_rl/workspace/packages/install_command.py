"""The command that installs a workspace's packages into an interpreter."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npu_rl.common.errors import HostError
from npu_rl.stack.installation.move_journal import InstallationFolder
from npu_rl.stack.pylocks.uv_program import find_uv
from npu_rl.workspace.folder.receipt import setup_hint
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths


def install_command(
    paths: WorkspacePaths,
    setup: Mapping[str, Any],
    host_python: str | None,
    python: str,
    version: str,
    *,
    managed: bool = False,
) -> str:
    """Return the command that installs a workspace's packages. If it contains NAME, a second line explains NAME.

    Args:
        setup: That of its receipt.
        host_python: Versions of Python that the stack is for, as a range.
        python: The interpreter. One of another version gets an environment beside the workspace in its place.
        version: Its version.
        managed: Whether it belongs to the operating system.
    """
    fits = _in_range(version, host_python) and not managed
    beside = paths.root.with_name(f"{paths.root.name}-python")
    where = ("--python", shlex.quote(python)) if fits else ("--venv", shlex.quote(str(beside)))
    return before_install() + setup_hint(paths, setup, "--install", *where)


def before_install() -> str:
    """Return the part of a command that installs uv if it is missing."""
    try:
        find_uv()
    except HostError:
        return f"{shlex.quote(sys.executable)} -m pip install --no-deps uv && "
    return ""


def interrupted_line(python: str | None) -> str | None:
    """Return a read-only command's line on an installation that is moving, or has moved, files into an interpreter."""
    if python is None:
        return None
    places = {Path(python).parent.parent, Path(python).resolve().parent.parent}
    if any(InstallationFolder(place).is_interrupted() for place in places):
        return f"packages are being moved into {python}, or a kill stopped that: npu-rl setup --install finishes it"
    return None


def _in_range(version: str, asked: str | None) -> bool:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return not asked or SpecifierSet(asked).contains(version, prereleases=True)
    except InvalidSpecifier:
        return version.startswith(str(asked))
