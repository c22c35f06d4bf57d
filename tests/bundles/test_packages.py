"""Wheels of a bundle: npu-rl's own with what it needs on another Python, and locked packages."""

from __future__ import annotations

import hashlib
from pathlib import Path
from sysconfig import get_platform

import pytest

import npu_rl
from npu_rl.common.errors import SourceError
from npu_rl.stack.bundles import bundled_packages
from npu_rl.stack.bundles.bundled_packages import add_program, download_packages
from npu_rl.stack.pylocks.pylock_file import LockedFile, LockedPackage, Pylock
from npu_rl.stack.pylocks.pylock_targets import Target
from tests.installation import made_packages

OTHER = Target("3.10", "aarch64", "2.34")
VERSION = npu_rl.__version__


def wheel(folder: Path, name: str, version: str = "1", tag: str = "py3-none-any", *requires: str) -> Path:
    file, data = made_packages.wheel(name, version, requires=requires, tag=tag)
    (folder / file).write_bytes(data)
    return folder / file


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all that pip and uv know."""
    for name in ("links", "taken"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")  # pip reads it as its opposite: build with what is here
    for name in ("PIP_CONSTRAINT", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "links"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.second
def test_what_another_python_needs_comes_with_npu_rl(
    links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version that is installed here is preferred where it fits; typer's newest is not taken.

    made-source has no wheel, so it is built, as hydra-core's antlr4-python3-runtime is.
    """
    from importlib.metadata import version

    own = wheel(links, "npu_rl", VERSION, "py3-none-any", "typer", "made-beta; python_version < '3.11'", "made-source",
                "made-delta; platform_machine == 'x86_64'", "uv; extra == 'uv'")  # fmt: skip
    for one in (version("typer"), "999"):
        wheel(links, "typer", one)
    wheel(links, "made_beta", "2", "cp310-cp310-manylinux_2_17_aarch64", "made-zeta")
    wheel(links, "made_beta", "3", "cp311-cp311-manylinux_2_17_aarch64")
    wheel(links, "made_beta", "4", "cp310-cp310-manylinux_2_35_aarch64")
    wheel(links, "made_zeta", "1", "cp39-abi3-manylinux2014_aarch64")
    wheel(links, "pip", "99")
    wheel(links, "uv", "99")
    source(links)
    monkeypatch.setattr(bundled_packages, "_own_source", lambda: str(own))
    taken = tmp_path / "taken"
    add_program([OTHER], taken, offline=True, installer=True)
    found = [name.partition("-py3")[0].partition("-cp")[0] for name in names(taken)]
    assert found == [
        "made_beta-2",
        "made_source-1",
        "made_zeta-1",
        f"npu_rl-{VERSION}",
        "pip-99",
        f"typer-{version('typer')}",
        "uv-99",
    ]
    (links / "pip-99-py3-none-any.whl").unlink()
    with pytest.raises(SourceError, match="uv can't resolve npu-rl's packages"):
        add_program([OTHER], taken, offline=True)


def locked(links: Path, *files: str) -> LockedPackage:
    found = [
        LockedFile(f"https://x/{name}", hashlib.sha256((links / name).read_bytes()).hexdigest())
        for name in files
    ]
    wheels = tuple(file for file in found if file.name.endswith(".whl"))
    sdist = next((file for file in found if file.name.endswith(".tar.gz")), None)
    return LockedPackage(files[0].split("-")[0].replace("_", "-"), "1", wheels, sdist)


def source(links: Path, tag: str = "py3-none-any") -> LockedPackage:
    """A package without a wheel."""
    file, data = made_packages.sdist("made-source", "1", made_packages.backend("made-source", "1", tag=tag))
    (links / file).write_bytes(data)
    return locked(links, file)


@pytest.mark.second
def test_locked_packages_come_with_their_hashes_and_those_without_a_wheel_are_built(
    links: Path, tmp_path: Path
) -> None:
    wheel(links, "made_alpha", "1", "cp310-cp310-manylinux_2_17_aarch64")
    wheel(links, "made_alpha", "1", "cp310-cp310-manylinux_2_35_aarch64")
    alpha = locked(links, "made_alpha-1-cp310-cp310-manylinux_2_17_aarch64.whl")
    taken = tmp_path / "taken"
    download_packages(Pylock("m", OTHER, "0" * 64, (alpha, source(links))), taken, offline=True)
    assert names(taken) == [
        "made_alpha-1-cp310-cp310-manylinux_2_17_aarch64.whl",
        "made_source-1-py3-none-any.whl",
    ]
    other = LockedPackage("made-alpha", "1", (LockedFile("https://x/a.whl", "0" * 64),))
    with pytest.raises(SourceError, match="can't download the packages of m"):
        download_packages(Pylock("m", OTHER, "0" * 64, (other,)), taken)
    compiled = source(links, f"py3-none-{get_platform().replace('-', '_').replace('.', '_')}")
    with pytest.raises(SourceError, match="is for this host only"):
        download_packages(Pylock("m", OTHER, "0" * 64, (compiled,)), tmp_path / "taken", offline=True)
