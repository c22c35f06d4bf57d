"""The environment id of a workspace on this host, which covers tree, packages, builds, CANN, driver and image."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npu_rl.common.bounded import read_file
from npu_rl.common.errors import HostError, WorkspaceError
from npu_rl.training.injected.npu_rl_host import host_facts
from npu_rl.workspace.folder.built_products import built_products
from npu_rl.workspace.folder.local_edits import own_work
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths

if TYPE_CHECKING:
    from npu_rl.stack.lock.lock_model import Lock
    from npu_rl.workspace.verification.verify import Report

PREFIX = "env:"
# Facts of a host (npu_rl_host.py) by the part that they belong to.
_OF_THE_HOST = {
    "cann": ("cann", "kernels", "nnal", "cuda"),
    "driver": ("driver", "firmware", "gpu_driver"),
    "image": ("image", "system"),
}
_SHORT = 12  # digits of a part's id
_LARGEST_LOCK = 8 << 20  # bytes
_LARGEST_SETTINGS = 1 << 16  # bytes of pyvenv.cfg
_OF_ENVIRONMENT = re.compile(r"^version(?:_info)?\s*=\s*(3\.\d+)\b", re.MULTILINE)
_OF_NAME = re.compile(r"python(3\.\d+)")


@dataclass(frozen=True)
class WorkspaceEnvironment:
    """The parts of an environment, by name.

    Attributes:
        of_workspace: The parts that every host of a run has from the workspace.
        facts: This host's (npu_rl_host.py).
    """

    of_workspace: Mapping[str, Any]
    facts: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the id, and each part's id and content."""
        of_host = {
            part: {name: self.facts.get(name) for name in names} for part, names in _OF_THE_HOST.items()
        }
        return described({**self.of_workspace, **of_host})


@dataclass(frozen=True)
class Status:
    """The result of `status`.

    Attributes:
        changed: The number of files that differ from the lock.
        own_work: The user's own commits, branches and stash, one line each.
        kept: The folders of local edits that `setup --discard` moved.
        setup: What the last `setup` recorded: its version, time, manifest and, if one was chosen, interpreter.
        environment: The id of the environment and its parts; None if the interpreter's version is not known.
    """

    workspace: Path
    lock: Lock
    lock_digest: str
    changed: int
    own_work: list[str]
    kept: list[str]
    setup: Mapping[str, Any]
    environment: dict[str, Any] | None


def status_of(paths: WorkspacePaths, report: Report, environment: WorkspaceEnvironment | None) -> Status:
    """Return the status of a verified workspace."""
    return Status(
        paths.root,
        report.lock,
        report.lock_digest,
        len({drift.path for drift in report.drift}),
        list(own_work(paths.root, report.receipt)),
        sorted(path.name for path in paths.kept.iterdir()) if paths.kept.is_dir() else [],
        report.receipt.setup,
        None if environment is None else environment.to_json(),
    )


def environment_lines(found: dict[str, Any]) -> list[str]:
    """Return lines with an environment's id, and each part's id and shortened content."""
    rows = [f"{name:<9} {part['id']}  {_shown(part['value'])}" for name, part in found["parts"].items()]
    return [found["id"], *rows]


def described(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the id of all parts together, `env:` and a SHA-256, and the parts, each with a short id of its own."""
    each = {name: {"id": _digest(value)[:_SHORT], "value": value} for name, value in sorted(parts.items())}
    return {"id": PREFIX + _digest(parts), "parts": each}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def workspace_environment(
    report: Report,
    python_version: str,
    root: Path = Path("/"),
    environ: Mapping[str, str] | None = None,
    *,
    changed: str | None = None,
) -> WorkspaceEnvironment:
    """Return the environment of a verified workspace.

    Args:
        python_version: The training interpreter's, such as 3.11.
        changed: Digest of the files that differ from the lock, so that their tree has an id of its own.
        root: Folder below which the host is read.
        environ: The shell's environment; None for this process's.
    """
    of_workspace = {
        "tree": dict(report.receipt.trees) | ({} if changed is None else {"changed": changed}),
        "variables": dict(report.lock.env),
        "pylock": _pylock_digest(report, python_version),
        "built": {path: product.sha256 for path, product in built_products(report.receipt.setup).items()},
    }
    return WorkspaceEnvironment(
        of_workspace, host_facts(str(root), os.environ if environ is None else environ)
    )


def python_version(python: str) -> str:
    """Return the version of an interpreter, such as 3.11, without starting it. Raises HostError if it is unknown."""
    if python == sys.executable:
        return f"{sys.version_info[0]}.{sys.version_info[1]}"
    place = Path(python)
    try:
        settings = read_file(place.parent.parent / "pyvenv.cfg", _LARGEST_SETTINGS).decode("utf-8", "replace")
    except (OSError, ValueError):
        settings = ""
    named = _OF_ENVIRONMENT.search(settings) or _OF_NAME.fullmatch(Path(os.path.realpath(place)).name)
    if named is None:
        raise HostError(
            f"Unknown version of the interpreter {python}",
            why="It is not in an environment with pyvenv.cfg, and is not a link to a file python3.N.",
            hint="Pass another of its paths, such as .../bin/python3.11: --python PATH",
        )
    return named[1]


def _pylock_digest(report: Report, version: str) -> str | None:
    """Return the digest of the committed package lock beside the manifest, or None."""
    from npu_rl.common.bundled import bundled_manifests
    from npu_rl.stack.pylocks.pylock_names import machine_name, pylock_name
    from npu_rl.workspace.folder.receipt import bundled_manifest

    setup = report.receipt.setup
    name = bundled_manifest(setup)
    manifest = bundled_manifests()[name] if name else Path(str(setup.get("manifest", "")))
    machine = machine_name(platform.machine().lower())
    if not manifest.name:
        return None
    try:
        content = read_file(manifest.with_name(pylock_name(manifest.stem, version, machine)), _LARGEST_LOCK)
    except (OSError, ValueError):
        return None
    return hashlib.sha256(content).hexdigest()


def _shown(value: Any) -> str:
    """Return the content of a part on one line, with shortened digests."""
    if not isinstance(value, dict):
        return _short(value)
    known = {name: one for name, one in value.items() if one is not None}
    shown = [f"{name} {_short(one)}" for name, one in list(known.items())[:4]]
    more = [f"and {len(known) - 4} more"] if len(known) > 4 else []
    return ", ".join([*shown, *more]) or "none"


def _short(value: Any) -> str:
    text = "none" if value is None else str(value)
    is_digest = len(text) in (40, 64) and not text.strip("0123456789abcdef")
    return text[:12] if is_digest else text


# -- what is expected ----------------------------------------------------------------------------------


def require_environment(paths: WorkspacePaths, found: WorkspaceEnvironment, expected: str) -> None:
    """Raise WorkspaceError, with the parts of the environment, if its id isn't the expected one."""
    here, *parts = environment_lines(found.to_json())
    if here == expected:
        return
    place = shlex.quote(str(paths.root))
    raise WorkspaceError(
        "The environment of this workspace and host differs from the expected one",
        where=str(paths.root),
        why="\n".join([f"Expected {expected},", f"found {here}.", *(f"Here: {part}" for part in parts)]),
        hint=f"Compare the parts with those of the host that it is from: npu-rl status --workspace {place}",
    )
