"""The command that installs a workspace's packages into an interpreter."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_rl.common.package_versions import fits
from npu_rl.common.user_state import keep_facts, kept_facts
from npu_rl.stack.requirements.environments import python_range
from npu_rl.workspace.folder.receipt import setup_hint
from npu_rl.workspace.folder.workspace_paths import DEFAULT_NAME, WorkspacePaths

_BUNDLE, _SUBJECT = "bundle", "workspace"


@dataclass(frozen=True)
class InstallPython:
    """The interpreter that a stack's packages are for.

    Attributes:
        path: The interpreter. One that does not fit gets an environment beside the workspace in its place.
        version: Its version.
        wanted: Versions of Python that the stack is for, as a range.
        managed: Whether it belongs to the operating system.
    """

    path: str
    version: str
    wanted: str | None = None
    managed: bool = False

    def words(self, workspace: Path) -> tuple[str, str, str]:
        """Return the options that install into it, or else into an environment beside the workspace."""
        root = Path(self.path).parent.parent
        own = os.access(root, os.W_OK) or not root.is_dir()
        if own and not self.managed and fits(self.version, str(python_range(self.wanted) or "")):
            return "--install", "--python", shlex.quote(self.path)
        return "--install", "--venv", shlex.quote(str(workspace.with_name(f"{workspace.name}-python")))


def install_command(paths: WorkspacePaths, setup: Mapping[str, Any], python: InstallPython) -> str:
    """Return the command that installs a workspace's packages. A second line explains NAME in it.

    Args:
        setup: That of its receipt.
    """
    bundle = bundle_of(paths, setup)
    words = ["--bundle", shlex.quote(str(bundle))] if bundle is not None else []
    return setup_hint(paths, setup, *words, *python.words(paths.root))


def first_install_command(manifest: str, python: InstallPython) -> str:
    """Return the command that sets up a manifest's stack here and installs its packages.

    Args:
        manifest: As the user named it.
    """
    words = python.words(Path(DEFAULT_NAME).absolute())
    return " ".join(["npu-rl setup --manifest", shlex.quote(manifest), *words])


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
