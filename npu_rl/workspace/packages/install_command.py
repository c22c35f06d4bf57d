"""The command that installs a workspace's packages into an interpreter."""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_rl.common.errors import HostError
from npu_rl.common.user_state import keep_facts, kept_facts
from npu_rl.stack.installation.move_journal import InstallationFolder
from npu_rl.stack.pylocks.uv_program import find_uv
from npu_rl.workspace.folder.receipt import setup_hint
from npu_rl.workspace.folder.workspace_paths import DEFAULT_NAME, WorkspacePaths

_KIND, _BUNDLE, _SUBJECT = "installation", "bundle", "workspace"
_WHEELS = "WHEELS is a folder with the wheels of torch and what else the host brings."


@dataclass(frozen=True)
class InstallPython:
    """The interpreter that a stack's packages are for.

    Attributes:
        path: The interpreter. One that does not fit gets an environment beside the workspace in its place.
        version: Its version.
        wanted: Versions of Python that the stack is for, as a range.
        managed: Whether it belongs to the operating system.
        cpu_torch: Whether the stack wants torch's build for CPUs, which torch_npu is made for.
        has_torch: Whether it has torch already.
    """

    path: str
    version: str
    wanted: str | None = None
    managed: bool = False
    cpu_torch: bool = False
    has_torch: bool = True

    @property
    def fits(self) -> bool:
        """Return whether packages may be installed into it."""
        return _in_range(self.version, self.wanted) and not self.managed and _is_own(self.path)

    @property
    def lacks_torch(self) -> bool:
        """Return whether torch has to come with the packages."""
        return not (self.fits and self.has_torch)

    def index(self) -> str:
        """Return the part of the command that names an index with torch, where it has to come from one."""
        return _index_of_torch() if self.cpu_torch and self.lacks_torch else ""


def install_command(paths: WorkspacePaths, setup: Mapping[str, Any], python: InstallPython) -> str:
    """Return the command that installs a workspace's packages. A second line explains NAME or WHEELS in it.

    For a workspace from a bundle with packages, the command names that bundle and no index.

    Args:
        setup: That of its receipt.
    """
    words = ["--install", *_target(python, paths.root)]
    bundle = bundle_of(paths, setup)
    if bundle is not None:
        words = ["--bundle", shlex.quote(str(bundle)), *words]
        if python.lacks_torch:
            return f"{setup_hint(paths, setup, *words, '--wheels WHEELS')}\n{_WHEELS}"
        return setup_hint(paths, setup, *words)
    return before_install() + python.index() + setup_hint(paths, setup, *words)


def first_install_command(manifest: str, python: InstallPython) -> str:
    """Return the command that sets up a manifest's stack here and installs its packages.

    Args:
        manifest: As the user named it.
    """
    words = ["npu-rl setup --manifest", shlex.quote(manifest), "--install"]
    words += _target(python, Path(DEFAULT_NAME).absolute())
    return before_install() + python.index() + " ".join(words)


def _target(python: InstallPython, workspace: Path) -> tuple[str, str]:
    """Return the option that names the interpreter, or else an environment beside the workspace."""
    if python.fits:
        return "--python", shlex.quote(python.path)
    return "--venv", shlex.quote(str(workspace.with_name(f"{workspace.name}-python")))


def _is_own(python: str) -> bool:
    """Return whether the user may write into an interpreter's environment, or it can't be seen."""
    root = Path(python).parent.parent
    return os.access(root, os.W_OK) or not root.is_dir()


def before_install() -> str:
    """Return the part of a command that installs uv if it is missing."""
    try:
        find_uv()
    except HostError:
        return f"{shlex.quote(sys.executable)} -m pip install --no-deps uv && "
    return ""


def _index_of_torch() -> str:
    """Return the part of a command that names an index with torch for CPUs, unless the user's own names come first."""
    from npu_rl.stack.sources.pip_config import TORCH_FOR_CPUS, read_pip_settings

    try:
        settings = read_pip_settings()
    except HostError:
        return ""  # the command itself says what is wrong with the configuration
    if platform.machine() != "x86_64" or settings.extra_index_urls or settings.no_index:
        return ""
    return f"PIP_EXTRA_INDEX_URL={TORCH_FOR_CPUS} "


def interrupted_line(
    paths: WorkspacePaths, setup: Mapping[str, Any], python: str | None = None
) -> str | None:
    """Return the line that names an unfinished installation and the command to finish it, or None.

    Args:
        setup: That of the workspace's receipt.
        python: The interpreter that the user named or has chosen; None for npu-rl's own.
    """
    python = shutil.which(python or sys.executable) or python or sys.executable
    programs = {Path(python).absolute(), Path(os.path.realpath(python))}
    places = [InstallationFolder(program.parent.parent) for program in programs]
    where = ["--python", shlex.quote(python)]
    begun = _begun_environment(paths)
    if begun is not None and not any(os.path.lexists(place.path) for place in places):
        places, python = [InstallationFolder(begun)], str(begun)
        where = ["--venv", shlex.quote(python)]
    command = setup_hint(paths, setup, "--install", *where).replace("\n", "; ")
    if any(place.is_interrupted() for place in places):
        return f"packages are being moved into {python}, or a kill stopped that; what finishes it: {command}"
    if any(os.path.lexists(place.path) for place in places):
        what = f"packages are being brought to {python}, or a kill stopped that before a change"
        return f"{what}; what goes on: {command}"
    return None


def keep_begun(paths: WorkspacePaths, environment: Path) -> None:
    """Note the new environment that packages are being brought to: a kill leaves it without being chosen."""
    with contextlib.suppress(OSError, ValueError):  # without a state folder nothing names it
        keep_facts(_KIND, _SUBJECT, paths.root, {"environment": str(environment)})


def keep_bundle(paths: WorkspacePaths, bundle: Path, lock: str) -> None:
    """Note the bundle with packages that a workspace was set up from, and the digest of the lock."""
    with contextlib.suppress(OSError, ValueError):  # without a state folder no hint names it
        keep_facts(_BUNDLE, _SUBJECT, paths.root, {"file": str(bundle.absolute()), "lock": lock})


def bundle_of(paths: WorkspacePaths, setup: Mapping[str, Any]) -> Path | None:
    """Return the bundle with packages that this user has set up a workspace from, if it is still there.

    Args:
        setup: That of the workspace's receipt.
    """
    kept = kept_facts(_BUNDLE, _SUBJECT, paths.root) or {}
    file = kept.get("file")
    if not isinstance(file, str) or kept.get("lock") != setup.get("lock"):
        return None
    return Path(file) if Path(file).is_file() else None


def _begun_environment(paths: WorkspacePaths) -> Path | None:
    kept = kept_facts(_KIND, _SUBJECT, paths.root)
    begun = None if kept is None else kept.get("environment")
    return Path(begun) if isinstance(begun, str) else None


def _in_range(version: str, asked: str | None) -> bool:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return not asked or SpecifierSet(asked).contains(version, prereleases=True)
    except InvalidSpecifier:
        return version.startswith(str(asked))
