"""`setup --install`: the packages of a manifest's host installed into an interpreter, completely or not at all.

They are first installed into a staging folder beside the environment, and moved in only when all are there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import HostError, SourceError
from npu_rl.common.printable import counted
from npu_rl.common.process import RUN_VARIABLE, run_shown
from npu_rl.stack.installation import file_moves, move_journal
from npu_rl.stack.installation.index_packages import PackageIndexes
from npu_rl.stack.installation.install_plan import InstallPlan, plan_installation
from npu_rl.stack.installation.move_journal import InstallationFolder, MoveJournal, staging_mark
from npu_rl.stack.installation.named_wheels import named_wheels
from npu_rl.stack.installation.new_environment import environment_target, made_environment
from npu_rl.stack.installation.target_python import TargetPython, read_target
from npu_rl.stack.manifest.load_manifest import load_manifest
from npu_rl.stack.pylocks.committed_pylock import committed_pylock
from npu_rl.stack.pylocks.pylock_file import Pylock
from npu_rl.stack.pylocks.pylock_targets import choose_target, targets
from npu_rl.stack.pylocks.uv_program import find_uv, index_hint, only_pypi, uv_environment, uv_folder
from npu_rl.stack.sources.credentials import scrub
from npu_rl.stack.sources.pip_config import read_pip_settings

if TYPE_CHECKING:
    from npu_rl.stack.manifest.load_manifest import LoadedManifest
    from npu_rl.stack.sources.pip_config import PipSettings

_SHOWN = ("Downloading ", "Building ")
_LONGEST_REASON = 4000  # characters


@dataclass(frozen=True)
class InstallRequest:
    """Options of an installation.

    Attributes:
        pylock: The packages, for the target's Python and machine.
        python: The interpreter, unless `venv` is given.
        venv: Folder of a virtual environment, which is made if it is missing.
        wheels: Folders and files that the user names.
        offline: Whether to query no index.
    """

    loaded: LoadedManifest
    pylock: Pylock
    python: str
    venv: Path | None = None
    wheels: tuple[Path, ...] = ()
    offline: bool = False


def requested(
    named: str, python: str, venv: Path | None, wheels: tuple[Path, ...], *, offline: bool
) -> InstallRequest:
    """Return a request for the packages that are locked beside a manifest.

    Args:
        named: The manifest's name or path.
        python: The interpreter, unless `venv` is given.

    Raises:
        UsageError: If the manifest is not for the interpreter's Python and machine, where it has several.
        LockError: If the packages are not locked.
        HostError: If the interpreter can't be run.
    """
    loaded = load_manifest(named)
    known = targets(loaded.manifest.device, loaded.manifest.host.python)
    wanted = None
    if venv is None or (venv / "bin" / "python").exists():
        wanted = read_target(str(venv / "bin" / "python") if venv is not None else python).short
    target = choose_target(known, wanted if wanted in {one.python for one in known} else None)
    return InstallRequest(loaded, committed_pylock(loaded, target, named), python, venv, wheels, offline)


def plan(request: InstallRequest, root: Path = Path("/")) -> InstallPlan:
    """Return what an installation would do. Nothing is changed.

    Args:
        root: Folder below which CANN is looked for.

    Raises:
        HostError: If it can't work, or if an earlier one was interrupted and is to be finished first.
        SourceError: If an index can't be queried.
    """
    target = _target(request)
    if InstallationFolder(target.root).is_interrupted():
        raise HostError(
            "An installation into this Python was interrupted while files were moved",
            where=target.shown,
            hint="The same command without --dry-run finishes it first.",
        )
    return _planned(request, target, root)


def _target(request: InstallRequest) -> TargetPython:
    if request.venv is not None:
        return environment_target(request.venv, request.pylock.target.python)
    return read_target(request.python)


def _planned(request: InstallRequest, target: TargetPython, root: Path) -> InstallPlan:
    settings = read_pip_settings(prefix=target.root)
    with uv_folder(settings, _variables(request, settings)) as (folder, variables):
        indexes = PackageIndexes(settings, request.pylock.target, variables, folder)
        wheels = named_wheels(request.wheels, target)
        return plan_installation(request.loaded, request.pylock, target, wheels, indexes, root)


def finish_interrupted(request: InstallRequest, notify: Callable[[str], None]) -> None:
    """Finish the moves of an installation that was killed, if there are any. Raises HostError."""
    target = _target(request)
    folder = InstallationFolder(target.root)
    if not folder.is_interrupted():
        return
    with disk_errors(target.root), folder.alone():
        journal = move_journal.finish(folder)
    if journal is not None:
        notify(f"Finished an interrupted installation of {counted(journal.packages, 'package')}.")


def install(
    request: InstallRequest, planned: InstallPlan, notify: Callable[[str], None], root: Path = Path("/")
) -> InstallPlan:
    """Install what was planned, and return what was done.

    Args:
        root: Folder below which CANN is looked for.

    Raises:
        SourceError: If a package can't be delivered or built; then nothing is changed.
        HostError: If the disk fails; then everything is moved back.
    """
    if planned.nothing_to_do:
        return planned
    target = planned.target
    settings = read_pip_settings(prefix=target.root)
    variables = _variables(request, settings)
    python = request.pylock.target.python
    with disk_errors(target.root), made_environment(target, python, variables):
        folder = InstallationFolder(target.root)
        with folder.alone():
            folder.sweep()
            now = read_target(target.path)
            if now.versions != target.versions:  # somebody else was faster
                planned = _planned(request, now, root)
            if planned.versions:
                _bring(planned, now, folder, _cached(variables, settings, folder), settings, notify)
    return planned


def _bring(
    planned: InstallPlan,
    target: TargetPython,
    folder: InstallationFolder,
    variables: Mapping[str, str],
    settings: PipSettings,
    notify: Callable[[str], None],
) -> None:
    mark = os.urandom(6).hex()
    staging = folder.path / f"staging-{mark}"
    _stage(planned, target, folder, staging, variables, settings, notify)
    _check_staged(planned, target, staging)
    replaced = [present for present, _ in planned.replaced if present.site == target.site]
    leaving = file_moves.outgoing(
        target, {path for one in replaced for path in file_moves.files_of(target, one)}
    )
    coming, in_the_way = file_moves.incoming(target.root, staging, leaving)
    host = [one.name for one in planned.host if one.present]
    file_moves.check_in_the_way(target, in_the_way, {one.name for one in replaced}, host)
    journal = MoveJournal(
        staging.name, f"old-{mark}", (*leaving, *in_the_way), tuple(coming), len(planned.versions)
    )
    move_journal.carry_out(folder, journal)


def _stage(
    planned: InstallPlan,
    target: TargetPython,
    folder: InstallationFolder,
    staging: Path,
    variables: Mapping[str, str],
    settings: PipSettings,
    notify: Callable[[str], None],
) -> None:
    """Install everything into a staging folder with the environment's layout. Raises SourceError."""
    (staging / "lib").mkdir(parents=True)
    if (target.root / "lib64").is_symlink():
        (staging / "lib64").symlink_to("lib")
    listed = folder.path / "requirements.txt"
    text = "".join(f"{line}\n" for line in planned.requirement_lines())
    folder.inside.write(listed, text.encode())
    argv = [find_uv(variables), "pip", "install", "--python", target.path, "--prefix", str(staging)]
    argv += ["--no-deps", "--require-hashes", "--requirements", str(listed)]

    def show(line: str) -> None:
        if line.strip().startswith(_SHOWN):
            notify(scrub(line, settings.secrets))

    notify(f"installing {counted(len(planned.versions), 'package')} into {target.path}")
    done = run_shown(argv, {**variables, RUN_VARIABLE: staging_mark(staging.name)}, folder.path, show)
    if done.code != 0:
        reason = _reason(done.stdout, settings)
        raise SourceError(
            "uv can't install the packages; the environment is as it was",
            where=target.shown,
            why=reason,
            hint=f"Correct that and run the same command again.\n{index_hint(reason, settings)}",
        )


def _reason(printed: str, settings: PipSettings) -> str:
    """Return uv's last lines, from its first error on."""
    lines = [scrub(line, settings.secrets) for line in printed.splitlines()]
    first = next((number for number, line in enumerate(lines) if line.startswith(("error", "x ", "× "))), 0)
    return "\n".join(line for line in lines[first:] if line)[-_LONGEST_REASON:]


def _check_staged(planned: InstallPlan, target: TargetPython, staging: Path) -> None:
    site = staging / target.site.relative_to(target.root)
    found = {
        str(canonicalize_name(one.metadata["Name"])): one.version for one in distributions(path=[str(site)])
    }
    if found != planned.versions:
        differing = sorted({name for name, _ in found.items() ^ planned.versions.items()})
        raise SourceError(
            "uv has installed other packages than the plan has; the environment is as it was",
            where=", ".join(differing[:20]),
            why="A wheel's metadata has another name or version than its file's name.",
        )


def _variables(request: InstallRequest, settings: PipSettings) -> dict[str, str]:
    """Return uv's environment: pip's settings, and the folders of wheels, where uv checks the hash of every file."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    found = uv_environment(settings, environ)
    folders = [str(place.absolute()) for place in request.wheels if place.is_dir()]
    if folders:
        found["UV_FIND_LINKS"] = ",".join([*settings.find_links, *folders])
    if request.offline:
        found["UV_OFFLINE"] = "1"
    return found


def _cached(variables: dict[str, str], settings: PipSettings, folder: InstallationFolder) -> dict[str, str]:
    """Return the variables; with a private index, whose address uv caches, the cache is removed with the folder."""
    if only_pypi(settings):
        return variables
    cache = folder.path / "cache"
    cache.mkdir(mode=0o700)
    return {**variables, "UV_CACHE_DIR": str(cache)}
