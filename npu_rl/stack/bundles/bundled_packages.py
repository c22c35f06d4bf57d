"""Wheels of a bundle: npu-rl with what it needs, and the packages locked beside a manifest.

A package that has no wheel is built into one here, so that nothing is compiled on a host without a network.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path

from packaging.utils import parse_wheel_filename

import npu_rl
from npu_rl.common.bounded import parse_toml
from npu_rl.common.bundled import data_root, is_checkout
from npu_rl.common.errors import SourceError
from npu_rl.common.process import CompletedCommand
from npu_rl.stack.bundles.pip_program import download_words, pip_errors, run_pip
from npu_rl.stack.pylocks.pylock_file import LockedPackage, Pylock, locked_packages
from npu_rl.stack.pylocks.pylock_targets import Target
from npu_rl.stack.pylocks.uv_program import index_hint, index_words, run_uv, uv_environment, uv_folder
from npu_rl.stack.sources.credentials import scrub
from npu_rl.stack.sources.pip_config import PipSettings, read_pip_settings
from npu_rl.stack.sources.pypi import download_sdist

_NAME = "npu-rl"


def add_program(
    targets: Sequence[Target], folder: Path, *, offline: bool = False, installer: bool = False
) -> None:
    """Write npu-rl's wheel into a folder, and download pip and npu-rl's requirements for each target.

    uv resolves them, and prefers the versions that are installed beside npu-rl.

    Args:
        offline: Whether to query no index.
        installer: Whether to add uv, which `setup --install` needs.

    Raises:
        SourceError: If an index does not deliver them.
        HostError: If pip or uv is missing.
    """
    own = _build_wheel(_own_source(), folder, _NAME, offline=offline)
    for target in targets:
        download_packages(
            _resolved(own, target, offline=offline, installer=installer), folder, offline=offline
        )


def download_packages(pylock: Pylock, folder: Path, *, offline: bool = False) -> None:
    """Download the files of a lock of packages into a folder, each with a locked hash.

    pip chooses the best wheel of each package for the target. The locked sdist of a package without one is built,
    which runs its code.

    Args:
        offline: Whether to query no index.

    Raises:
        SourceError: If no index delivers a file with a locked hash, or a package can't be built for the target.
        HostError: If there is no pip.
    """
    lines = "".join(
        f"{one.name}=={one.version} {' '.join(f'--hash=sha256:{file.sha256}' for file in one.wheels)}\n"
        for one in pylock.packages
        if one.wheels
    )
    target = pylock.target
    with tempfile.TemporaryDirectory(prefix="npu-rl-wheels-") as name:
        listed = Path(name) / "requirements.txt"
        listed.write_text(lines, encoding="utf-8")
        words = [*download_words(target, folder, offline=offline), "--require-hashes", "-r", str(listed)]
        done = run_pip(words, folder)
    if done.code:
        what = f"the packages of {pylock.manifest} for Python {target.python} on {target.machine}"
        raise _failed(f"pip can't download {what}", done)
    for package in pylock.from_source():
        _build_package(package, folder, offline=offline)


def _settings(*, offline: bool) -> PipSettings:
    settings = read_pip_settings()
    return replace(settings, no_index=True) if offline else settings


def _resolved(own: Path, target: Target, *, offline: bool, installer: bool) -> Pylock:
    """Return pip and what npu-rl requires on a target. uv runs the build of an sdist that names no requirements."""
    settings = _settings(offline=offline)
    with uv_folder(settings, uv_environment(settings, os.environ)) as (folder, variables):
        wanted, found = folder / "wanted.txt", folder / "pylock.toml"
        wanted.write_text(f"{_NAME}{'[uv]' if installer else ''} @ {own.as_uri()}\npip\n")
        # uv prefers the versions of an earlier output.
        here = {f'{{name = "{one.metadata["Name"]}", version = "{one.version}"}},' for one in distributions()}
        found.write_text(f'lock-version = "1.0"\ncreated-by = "{_NAME}"\npackages = [{"".join(here)}]\n')
        words = ["pip", "compile", wanted.name, "--output-file", found.name, "--generate-hashes", "--quiet"]
        words += ["--no-emit-package", _NAME, "--python", sys.executable]
        words += ["--python-version", target.python, "--python-platform", target.uv_platform]
        words += [*index_words(settings), *(["--no-build-isolation"] if offline else [])]
        done = run_uv(words, variables, folder)
        if done.code:
            reason = scrub(done.stderr.strip(), settings.secrets)
            raise SourceError(
                f"uv can't resolve {_NAME}'s packages for Python {target.python} on {target.machine}",
                why=reason,
                hint=index_hint(reason, settings),
            )
        packages = locked_packages(parse_toml(found.read_text(encoding="utf-8")))
        return Pylock(_NAME, target, made_from="", packages=tuple(packages))


def _own_source() -> str:
    """Return what pip makes npu-rl's wheel from: the checkout, or what npu-rl was installed from."""
    if is_checkout():
        return str(data_root())
    try:
        recorded = distribution(_NAME).read_text("direct_url.json")
    except PackageNotFoundError:
        recorded = None
    if recorded is None:
        return f"{_NAME}=={npu_rl.__version__}"
    source = json.loads(recorded)
    git = source.get("vcs_info")
    return f"git+{source['url']}@{git['commit_id']}" if git else str(source["url"])


def _build_package(package: LockedPackage, folder: Path, *, offline: bool) -> None:
    """Build the wheel of a package from its locked sdist. Raises SourceError if it is for this host only."""
    assert package.sdist is not None  # it has no wheel
    with tempfile.TemporaryDirectory(prefix="npu-rl-wheels-") as name:
        sdist = download_sdist(
            package.name,
            package.version,
            sha256=package.sdist.sha256,
            settings=_settings(offline=offline),
            folder=Path(name),
        )
        wheel = _build_wheel(str(sdist.path), folder, package.name, offline=offline)
    if any(tag.platform != "any" for tag in parse_wheel_filename(wheel.name)[3]):
        raise SourceError(
            f"{package.name} {package.version} has no wheel, and the one built here is for this host only",
            where=wheel.name,
            hint="Build it on a host like the other one, and name its wheel there: setup --install --wheels FILE",
        )


def _build_wheel(source: str, folder: Path, package: str, *, offline: bool) -> Path:
    """Make or download one wheel by `pip wheel`, and return its path."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        words = ["wheel", "--no-deps", "--wheel-dir", name]
        words += ["--no-index", "--no-build-isolation"] if offline else []
        done = run_pip([*words, source], folder)
        made = list(Path(name).glob("*.whl"))
        if done.code or not made:
            raise _failed(f"pip can't make the wheel of {package}", done)
        return made[0].rename(folder / made[0].name)


def _failed(what: str, done: CompletedCommand) -> SourceError:
    hint = "Check pip's index, and its find-links, which alone are searched with --offline: pip config list"
    return SourceError(what, why=pip_errors(done), hint=hint)
