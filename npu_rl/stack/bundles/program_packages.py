"""npu-rl's wheel with every package that it needs, and pip, for a host that has only Python and git.

The versions are those that are installed beside npu-rl, so a bundle brings what ran where it was made. What only
another Python version needs is taken as its bounds allow. pip itself judges markers by the Python that runs it, not by
the one that it downloads for: which packages a target needs is found here, from their metadata.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Sequence
from email.parser import Parser
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from npu_rl.common.errors import SourceError
from npu_rl.stack.bundles.own_wheel import METADATA, make_own_wheel
from npu_rl.stack.bundles.pip_program import OFFLINE, download_words, pip_errors, run_pip
from npu_rl.stack.pylocks.pylock_targets import Target

_LARGEST_METADATA = 4 << 20  # bytes


def add_program(
    targets: Sequence[Target], folder: Path, *, offline: bool = False, installer: bool = False
) -> None:
    """Write npu-rl's wheel into a folder, and download pip and npu-rl's requirements for each target.

    Args:
        offline: Whether to query no index.
        installer: Whether to add uv, which `setup --install` needs.

    Raises:
        SourceError: If pip finds no wheel of a package for a target.
        HostError: If there is no pip, or npu-rl's installation is not as it was.
    """
    own = make_own_wheel(folder, offline=offline)
    for target in targets:
        needs = _Needs(target, folder, offline=offline)
        needs.add(["pip"])
        needs.add(_requires(own), ["uv"] if installer else [])
        while needs.wanted:
            needs.download()


class _Needs:
    """The packages that one target needs, collected while requirements are read."""

    def __init__(self, target: Target, folder: Path, *, offline: bool = False) -> None:
        self.target, self.folder, self.offline = target, folder, offline
        self.wanted: dict[str, Requirement] = {}
        self._known: set[tuple[str, str]] = set()
        self._unread: dict[str, set[str]] = {}

    def add(self, lines: Iterable[str], extras: Iterable[str] = ()) -> None:
        """Add the requirements that hold on the target and, for packages installed here, their own requirements."""
        for requirement in map(Requirement, lines):
            if self._holds(requirement, extras):
                name = canonicalize_name(requirement.name)
                for extra in ("", *requirement.extras):
                    if (name, extra) not in self._known:
                        self._known.add((name, extra))
                        self._follow(name, extra, requirement)

    def _holds(self, requirement: Requirement, extras: Iterable[str]) -> bool:
        marker = requirement.marker
        environment = {str(key): str(value) for key, value in self.target.environment().items()}
        return marker is None or any(marker.evaluate({**environment, "extra": one}) for one in ("", *extras))

    def _follow(self, name: str, extra: str, requirement: Requirement) -> None:
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            installed = None
        if installed is not None and requirement.specifier.contains(installed.version, prereleases=True):
            self.wanted.setdefault(name, Requirement(f"{name}=={installed.version}"))
            self.add(installed.requires or (), [extra] if extra else [])
        else:
            self.wanted.setdefault(name, Requirement(f"{name}{requirement.specifier}"))
            self._unread.setdefault(name, set()).add(extra)

    def download(self) -> None:
        """Download the wanted packages, and add the requirements of those that are not installed here."""
        wanted, self.wanted = self.wanted, {}
        unread, self._unread = self._unread, {}
        words = download_words(self.target, self.folder, offline=self.offline)
        words += [str(one) for one in wanted.values()]
        done = run_pip(words, self.folder)
        if done.code:
            raise SourceError(
                f"pip can't download npu-rl's packages for Python {self.target.python} on {self.target.machine}",
                why=pip_errors(done),
                hint=OFFLINE if self.offline else "Check the index of pip's configuration: pip config list",
            )
        for name, extras in unread.items():
            self.add(_requires(_wheel_of(self.folder, name)), [extra for extra in extras if extra])


def _wheel_of(folder: Path, name: str) -> Path:
    """Return the newest wheel of a package in a folder."""
    found = []
    for path in folder.glob("*.whl"):
        try:
            parsed = parse_wheel_filename(path.name)
        except InvalidWheelFilename:
            continue
        if parsed[0] == name:
            found.append((parsed[1], path))
    if not found:
        raise SourceError(f"pip downloaded no wheel of {name}", where=str(folder))
    return max(found)[1]


def _requires(wheel: Path) -> list[str]:
    """Return the requirements of a wheel. Raises SourceError for one without valid metadata."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            (name,) = filter(METADATA.fullmatch, archive.namelist())
            if archive.getinfo(name).file_size > _LARGEST_METADATA:
                raise ValueError("its METADATA is too large")
            text = archive.read(name).decode("utf-8")
        lines = Parser().parsestr(text, headersonly=True).get_all("Requires-Dist") or []
        for line in lines:
            Requirement(line)
    except (ValueError, InvalidRequirement, zipfile.BadZipFile, OSError) as error:
        raise SourceError("A wheel has no valid metadata", where=wheel.name, why=str(error)) from error
    return lines
