"""The training interpreter of a workspace, checked for every package that the stack requires."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.common import host_facts
from npu_rl.common.errors import HostError
from npu_rl.common.interpreter import Interpreter, read_interpreter
from npu_rl.common.package_versions import lacking_packages
from npu_rl.stack.installation.unfinished import unfinished_packages
from npu_rl.stack.lock.lock_model import Lock
from npu_rl.training.host.vllm_environment import vllm_version
from npu_rl.workspace.folder.chosen_interpreter import choose
from npu_rl.workspace.folder.workspace_paths import WorkspacePaths
from npu_rl.workspace.packages.install_command import InstallPython, bundle_of, install_command
from npu_rl.workspace.verification.verify import Report

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# For 3.13 and later there are no wheels of ray 2.42 and numpy 1.26, and the locked verl was never run with it.
SUPPORTED = ((3, 10), (3, 12))


_SERVERS = "quickstart-today"
"""The manifest whose packages rehearse a stack with vLLM's server."""


def sufficient_interpreter(
    python: str | None, paths: WorkspacePaths, report: Report, device: str, stands_in: bool, root: Path
) -> Interpreter:
    """Return the training interpreter, with those of its packages that are required.

    Args:
        device: The recipe's.
        stands_in: Whether nothing is run on NPUs or GPUs, so that the quickstart's packages do where there are none.

    Raises:
        HostError: If it lacks a package of the stack, or an installation into it was interrupted.
    """
    required = _requirements(report.lock, paths.code, stands_in, root)
    found = read_interpreter(choose(python, paths, report.receipt.setup))
    install = installing(paths, report, found)
    if unfinished_packages(Path(found.prefix)):
        raise HostError(
            "An installation into the training interpreter was interrupted",
            where=found.shown,
            hint=f"Finish it: {install}",
        )
    own = required is report.lock.requirements
    # The extra's torch would take the place of the one that a stack's packages are compiled for.
    # And where the stack came from a bundle, there may be no network to install an extra from.
    serves = vllm_version(paths.code) == "0.18.0"  # the extra has packages of another vLLM
    bundled = bundle_of(paths, report.receipt.setup) is not None
    extra = "" if (own and device != "cpu") or bundled or serves else "rehearsal"
    of_servers = f"npu-rl setup --manifest {_SERVERS} --workspace {_SERVERS} --install --venv DIR"
    require_packages(found, required, extra=extra, install=install if own else of_servers if serves else None)
    names = {_name(text) for text in required}
    return replace(
        found, packages={name: version for name, version in found.packages.items() if name in names}
    )


def require_packages(
    found: Interpreter,
    requirements: Sequence[str],
    *,
    by: str = "the manifest",
    extra: str = "rehearsal",
    install: str | None = None,
) -> None:
    """Check that an interpreter can run training.

    Args:
        requirements: PEP 508 requirements. A local version (2.13.0+cpu) counts as the public one.
        by: What requires them, for the message.
        extra: npu-rl's extra that installs them, for the message; empty if none does.
        install: The command that installs all of them; None if no lock of packages has them.

    Raises:
        HostError: For a Python version without the pinned packages, or with all packages that are missing.
    """
    if not SUPPORTED[0] <= tuple(map(int, found.short.split("."))) <= SUPPORTED[1]:
        raise HostError(
            f"Python {found.short} can't run the training",
            where=found.shown,
            why="The pinned ray, numpy and torch have builds for Python 3.10 to 3.12 only.",
            hint="Name another interpreter: --python python3.12",
        )
    lacking = lacking_packages(found.packages, requirements)
    if lacking:
        missing = [wanted for wanted, _ in lacking]
        how = _how_to_install(missing, found, extra, install)
        raise HostError(
            f"The training interpreter lacks {len(missing)} of {len(requirements)} packages that {by} requires",
            where=found.shown,
            why="\n".join(
                f"{wanted}: {f'{version} is installed' if version else 'not installed'}"
                for wanted, version in lacking
            ),
            hint=f"{how}\nOr name an interpreter that has them: --python PATH",
        )


def installing(paths: WorkspacePaths, report: Report, found: Interpreter) -> str:
    """Return the command that installs a workspace's packages into an interpreter."""
    into = InstallPython(found.path, found.version, report.lock.host.get("python"), managed=found.managed)
    return install_command(paths, report.receipt.setup, into)


def _requirements(lock: Lock, code: Path, rehearse: bool, root: Path) -> tuple[str, ...]:
    """Return the requirements on the interpreter.

    They are the manifest's. A stack for NPUs or GPUs on a machine without any needs those of the quickstart with its
    vLLM, with which rehearsals were run (for 0.9.1 the extra `rehearsal`).
    """
    if not rehearse or lock.device == "cpu" or host_facts.devices(lock.device, root):
        return lock.requirements
    from npu_rl.stack.manifest.load_manifest import load_manifest

    of_cpu = _SERVERS if vllm_version(code) == "0.18.0" else "quickstart"
    return tuple(load_manifest(of_cpu).manifest.requirements)


def _how_to_install(
    missing: Sequence[Requirement], found: Interpreter, extra: str, install: str | None
) -> str:
    pip = f"{shlex.quote(found.path)} -m pip install"
    if extra and Path(found.path) == Path(sys.executable):
        return f"Install them there: {pip} 'npu-rl[{extra}]'"
    if install is not None:
        return f"Install the whole set, as it is locked:\n{install}"
    # Beside torch_npu pip must not choose another torch for a package that requires one.
    options = " --no-deps" if "torch-npu" in found.packages else ""
    words = (f"{one.name} @ {one.url}" if one.url else f"{one.name}{one.specifier}" for one in missing)
    return f"Install them there: {pip}{options} {' '.join(map(shlex.quote, words))}"


def _name(requirement: str) -> str:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    return canonicalize_name(Requirement(requirement).name)
