"""`setup --install`: uv installs the packages of a manifest's host into an interpreter."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import HostError, SourceError
from npu_rl.common.interpreter import read_interpreter
from npu_rl.common.package_versions import fits
from npu_rl.common.printable import counted
from npu_rl.common.process import run_shown
from npu_rl.stack.installation.host_packages import NAME_THEIR_SOURCE
from npu_rl.stack.installation.install_plan import InstallPlan
from npu_rl.stack.installation.new_environment import make_environment
from npu_rl.stack.installation.unfinished import begin, end, unfinished_packages
from npu_rl.stack.pylocks.requirement_lines import package_lines
from npu_rl.stack.pylocks.uv_program import find_uv, index_hint, index_words, uv_environment, uv_folder
from npu_rl.stack.sources.credentials import scrub
from npu_rl.stack.sources.pip_config import read_pip_settings

if TYPE_CHECKING:
    from npu_rl.stack.sources.pip_config import PipSettings

_SHOWN = ("Downloading ", "Building ")
_NEEDS_CUDA = re.compile(r"^ \+ (?:nvidia|cuda)-", re.MULTILINE)
_LONGEST_REASON = 4000  # characters


def install(
    plan: InstallPlan, wheels: Iterable[Path], notify: Callable[[str], None], *, offline: bool
) -> None:
    """Install what was planned, the host's packages first.

    Not `uv pip install -r pylock.toml`, which fetches from the addresses in the file: that is PyPI, whatever index,
    mirror or folder of wheels is configured. The list has the same versions and hashes.

    Args:
        wheels: Folders of wheels, where uv looks for all packages. It checks the hash of each locked one.
        offline: Whether to query no index.

    Raises:
        SourceError: If a package can't be delivered or built.
        HostError: If the index's torch is built for CUDA, the disk fails, or Python imports other versions.
    """
    root = Path(plan.target.prefix)
    settings = read_pip_settings(prefix=root)
    variables = _variables(settings, wheels, offline=offline)
    with disk_errors(root), uv_folder(settings, variables) as (folder, variables):
        if plan.target.absent:
            make_environment(plan.target, variables)
        if plan.changes.installed:
            notify(f"installing {counted(len(plan.changes.installed), 'package')} into {plan.target.path}")
            _bring(plan, _Uv(plan.target.path, folder, variables, settings, notify))


@dataclass(frozen=True)
class _Uv:
    """uv for one interpreter, with its environment and a folder for its input."""

    python: str
    folder: Path
    variables: Mapping[str, str]
    settings: PipSettings
    notify: Callable[[str], None]

    def install(self, lines: Iterable[str], *words: str, hint: str = "") -> str:
        """Install a list of requirements, and return uv's output. Raises SourceError."""
        (self.folder / "requirements.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
        argv = [find_uv(self.variables), "pip", "install", "--python", self.python]
        argv += index_words(self.settings)
        done = run_shown([*argv, "-r", "requirements.txt", *words], self.variables, self.folder, self._show)
        if done.code == 0:
            return done.stdout
        printed = [scrub(line, self.settings.secrets) for line in done.stdout.splitlines() if line]
        begins = (number for number, line in enumerate(printed) if line.startswith(("error", "x ", "× ")))
        reason = "\n".join(printed[next(begins, 0) :])[-_LONGEST_REASON:]
        raise SourceError(
            "uv can't install the packages",
            where=self.python,
            why=reason,
            hint=f"Correct that and run the same command again.\n{index_hint(reason, self.settings)}\n{hint}".strip(),
        )

    def _show(self, line: str) -> None:
        if line.strip().startswith(_SHOWN):
            self.notify(scrub(line, self.settings.secrets))


def _bring(plan: InstallPlan, uv: _Uv) -> None:
    of_index = [one.requirement() for one in plan.of_host if one.wheel is None]
    if of_index and not plan.cuda:
        _refuse_cuda(of_index, uv)
    if plan.of_host:
        with _marked(plan, [one.name for one in plan.of_host]) as words:
            uv.install((one.requirement() for one in plan.of_host), *words, hint=NAME_THEIR_SOURCE)
    if plan.coming:
        lines = (line for package in plan.coming for line in package_lines(package))
        with _marked(plan, [one.name for one in plan.coming]) as words:
            uv.install(lines, "--require-hashes", *words)
    end(Path(plan.target.prefix))
    now = read_interpreter(plan.target.path)
    other = [
        f"{name} {now.packages.get(name, 'is missing')}"
        for name, version in plan.changes.installed.items()
        if not fits(now.packages.get(name, ""), version)
    ]
    if other:
        raise HostError(
            "Python imports other packages than uv has installed",
            where=now.shown,
            why=", ".join(other[:20]),
            hint="Remove those of another folder, or install into an environment of its own: --venv DIR",
        )


@contextlib.contextmanager
def _marked(plan: InstallPlan, names: Iterable[str]) -> Iterator[Sequence[str]]:
    """Provide uv's further options, and hold the mark of an unfinished installation."""
    root, path = Path(plan.target.prefix), plan.target.path
    again, before = unfinished_packages(root), read_interpreter(path).packages
    begin(root, {*again, *names})
    try:
        yield ["--no-deps", *(["--reinstall"] if again else [])]
    except SourceError:
        if read_interpreter(path).packages == before and not again:
            end(root)  # uv changes nothing before it has everything
        raise
    if not again:
        end(root)


def _refuse_cuda(of_index: Sequence[str], uv: _Uv) -> None:
    """Raise HostError if an index's build of a host package needs NVIDIA's packages, as PyPI's torch does."""
    found = ""
    with contextlib.suppress(SourceError):  # the installation itself reports why, and needs fewer packages
        found = uv.install(of_index, "--dry-run")
    if _NEEDS_CUDA.search(found):
        what = "The index's build is for CUDA, which this stack does not use"
        raise HostError(what, where=", ".join(of_index), hint=NAME_THEIR_SOURCE)


def _variables(settings: PipSettings, wheels: Iterable[Path], *, offline: bool) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    found = uv_environment(settings, environ)
    folders = [str(place.absolute()) for place in wheels if place.is_dir()]
    if folders:
        found["UV_FIND_LINKS"] = ",".join([*settings.find_links, *folders])
    if offline:
        found["UV_OFFLINE"] = "1"
    return found
