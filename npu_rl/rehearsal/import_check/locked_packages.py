"""Comparison of an interpreter's packages with the manifest: the package lock, host packages, forbidden ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from npu_rl.common.errors import LockError, NpuRlError
from npu_rl.common.interpreter import Interpreter
from npu_rl.common.yaml_documents.finding import Finding, Severity, file_finding
from npu_rl.stack.lock.lock_model import Lock
from npu_rl.stack.pylocks.locked_versions import differing_packages
from npu_rl.training.host.line import NOTE, RED
from npu_rl.training.host.machines import machine_kind
from npu_rl.training.host.python_lines import python_lines
from npu_rl.training.host.wanted_host import WantedHost

if TYPE_CHECKING:
    from npu_rl.stack.pylocks.pylock_file import Pylock


def pylock_of(manifest: str, lock: Lock, python: Interpreter) -> Pylock:
    """Return the package lock beside a manifest that applies to an interpreter.

    Args:
        manifest: Its bundled name, or its path.

    Raises:
        NpuRlError: If there is none, the manifest can't be read or has changed, or it is for other interpreters.
    """
    from npu_rl.stack.manifest.load_manifest import load_manifest
    from npu_rl.stack.pylocks.committed_pylock import committed_pylock
    from npu_rl.stack.pylocks.pylock_targets import choose_target, targets

    loaded = load_manifest(manifest)
    target = choose_target(targets(lock.device, lock.host.get("python")), python.short, python.machine)
    return committed_pylock(loaded, target, manifest)


def package_findings(
    manifest: str, lock: Lock, python: Interpreter, install: str = ""
) -> tuple[int | None, list[Finding]]:
    """Compare an interpreter's packages with the locked ones.

    Args:
        install: The command that installs what is locked.

    Returns:
        The number of locked packages, None if there is no lock of them, and the findings.
    """
    found = []
    pylock = None
    try:
        pylock = pylock_of(manifest, lock, python)
    except NpuRlError as error:
        what = f"{error.what}, so packages are only held against the manifest's requirements"
        fix = error.hint if isinstance(error, LockError) and error.hint else ""
        found.append(file_finding("no-pylock", Severity.NOTE, error.where or manifest, what, fix))
    else:
        found += _differences(pylock, python, install)
    found += _host_findings(lock, python, pylock is not None, install)
    return len(pylock.packages) if pylock else None, found


def _differences(pylock: Pylock, python: Interpreter, install: str) -> Iterator[Finding]:
    for package, version in differing_packages(pylock, python.packages):
        what = f"{package.name}=={package.version} is not installed"
        if version is not None:
            what = f"{package.name} {version} is installed, {package.version} is locked"
        yield file_finding("package-version", Severity.ERROR, f"pylock {pylock.target.shown}", what, install)


def _host_findings(lock: Lock, python: Interpreter, locked: bool, install: str) -> Iterator[Finding]:
    """Yield the doctor's findings on the interpreter: the host's packages, forbidden ones, second installs."""
    wanted = WantedHost(lock.manifest, lock.device, lock.host, lock.requirements, lock.env, install)
    for line in python_lines(python, wanted, machine_kind(lock.device), lock.device):
        if line.state not in (RED, NOTE) or (locked and line.id == "requirements"):
            continue
        severity = Severity.ERROR if line.state == RED else Severity.NOTE
        wish = f"; wanted: {line.wanted}" if line.wanted else ""
        yield file_finding(line.id, severity, python.path, f"{line.what}: {line.found}{wish}", line.fix)
