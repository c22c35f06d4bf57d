"""The training interpreter of a workspace, checked for every package that the stack requires."""

from __future__ import annotations

from pathlib import Path

from npu_rl.common import host_facts
from npu_rl.common.errors import HostError
from npu_rl.stack.installation.unfinished import unfinished_packages
from npu_rl.stack.lock.lock_model import Lock
from npu_rl.training.run import interpreter
from npu_rl.training.run.interpreter import Interpreter
from npu_rl.workspace.folder.chosen_interpreter import choose
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from npu_rl.workspace.packages.install_command import InstallPython, bundle_of, install_command
from npu_rl.workspace.verification.verify import Report


def sufficient_interpreter(
    python: str | None, paths: WorkspacePaths, report: Report, device: str, stands_in: bool, root: Path
) -> Interpreter:
    """Return the training interpreter. Raises HostError if it lacks a package of the stack.

    Args:
        device: The recipe's.
        stands_in: Whether nothing is run on NPUs or GPUs, so that the quickstart's packages do where there are none.
    """
    required = _requirements(report.lock, stands_in, root)
    found = interpreter.probe(choose(python, paths, report.receipt.setup), required)
    install = installing(paths, report, found)
    if unfinished_packages(Path(found.prefix)):
        raise HostError(
            "An installation into the training interpreter was interrupted",
            where=found.shown,
            hint=f"Finish it: {install}",
        )
    own = required is report.lock.requirements
    device = device if own else "cpu"  # what the packages are for
    # The extra's torch would take the place of the one that a GPU stack's packages are compiled for.
    # And where the stack came from a bundle, there may be no network to install an extra from.
    without_extra = device == "cuda" or bundle_of(paths, report.receipt.setup) is not None
    extra = "" if without_extra else "rehearsal"
    interpreter.require(found, required, extra=extra, npu=device == "npu", install=install if own else None)
    return found


def installing(paths: WorkspacePaths, report: Report, found: Interpreter) -> str:
    """Return the command that installs a workspace's packages into an interpreter."""
    into = InstallPython(
        found.path,
        ".".join(map(str, found.version)),
        report.lock.host.get("python"),
        managed=found.managed,
    )
    return install_command(paths, report.receipt.setup, into)


def _requirements(lock: Lock, rehearse: bool, root: Path) -> tuple[str, ...]:
    """Return the requirements on the interpreter.

    They are the manifest's. A stack for NPUs or GPUs on a machine without any needs those of the quickstart, with
    which rehearsals were run (the extra `rehearsal`).
    """
    if not rehearse or lock.device == "cpu" or host_facts.devices(lock.device, root):
        return lock.requirements
    from npu_rl.stack.manifest.load_manifest import load_manifest

    return tuple(load_manifest("quickstart").manifest.requirements)
