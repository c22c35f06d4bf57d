"""Files of the packages locked beside a manifest: wheels, and sdists of packages without a wheel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from npu_rl.common.bounded import hash_file
from npu_rl.common.errors import SourceError
from npu_rl.stack.bundles.pip_program import OFFLINE, download_words, pip_errors, run_pip
from npu_rl.stack.pylocks.pylock_file import LockedPackage, Pylock


def download_packages(pylock: Pylock, folder: Path, *, offline: bool = False) -> None:
    """Download the files of a lock of packages into a folder, each with a locked hash.

    pip chooses the best wheel of each package for the target. The sdists of packages without a wheel are fetched
    without pip, which would run their build code.

    Args:
        offline: Whether to query no index.

    Raises:
        SourceError: If no index delivers a file with a locked hash.
        HostError: If there is no pip.
    """
    from npu_rl.stack.sources.pip_config import read_pip_settings
    from npu_rl.stack.sources.pypi import download_sdist

    requirements = folder / "requirements.txt"
    requirements.write_text("".join(_line(one) for one in pylock.packages if one.wheels), encoding="utf-8")
    words = [
        *download_words(pylock.target, folder, offline=offline),
        "--require-hashes",
        "-r",
        str(requirements),
    ]
    done = run_pip(words, folder)
    requirements.unlink()
    if done.code:
        target = pylock.target
        raise SourceError(
            f"pip can't download the packages of {pylock.manifest} for Python {target.python} on {target.machine}",
            why=pip_errors(done),
            hint=OFFLINE if offline else "Check the index of pip's configuration: pip config list",
        )
    settings = read_pip_settings()
    for package in pylock.from_source():
        assert package.sdist is not None
        download_sdist(
            package.name,
            package.version,
            sha256=package.sdist.sha256,
            settings=replace(settings, no_index=True) if offline else settings,
            folder=folder,
        )


def add_build_tools(pylock: Pylock, folder: Path, *, offline: bool = False) -> None:
    """Download pip's build requirements for sdists, if some of the packages have no wheel.

    Raises SourceError, HostError.
    """
    if pylock.from_source():
        words = download_words(pylock.target, folder, offline=offline)
        done = run_pip([*words, "setuptools", "wheel"], folder)
        if done.code:
            raise SourceError(
                "pip can't download setuptools and wheel, which packages without a wheel are built with",
                why=pip_errors(done),
                hint=OFFLINE if offline else "Check the index of pip's configuration: pip config list",
            )


def require_locked(pylocks: list[Pylock], folder: Path) -> None:
    """Raise SourceError for a file whose hash is in no lock: constraints or links of pip may have added it."""
    locked = {file.sha256 for pylock in pylocks for package in pylock.packages for file in package.files}
    for path in sorted(folder.iterdir()):
        if hash_file(path) not in locked:
            raise SourceError("A downloaded package is not the locked one", where=path.name)


def _line(package: LockedPackage) -> str:
    hashes = " ".join(f"--hash=sha256:{file.sha256}" for file in package.wheels)
    return f"{package.name}=={package.version} {hashes}\n"
