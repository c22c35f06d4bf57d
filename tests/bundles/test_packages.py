"""Packages of a bundle: npu-rl's own wheel made again, what it needs on another Python, and locked wheels."""

from __future__ import annotations

import base64
import hashlib
import io
import sys
import tarfile
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path

import pytest

import npu_rl
from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import HostError, SourceError
from npu_rl.common.process import CompletedCommand
from npu_rl.stack.bundles import own_wheel, program_packages
from npu_rl.stack.bundles.bundled_packages import download_packages, require_locked
from npu_rl.stack.bundles.own_wheel import _installed_files, _pack
from npu_rl.stack.bundles.pip_program import pip_errors, platforms
from npu_rl.stack.bundles.program_packages import _Needs, _requires, add_program
from npu_rl.stack.pylocks.pylock_file import LockedFile, LockedPackage, Pylock
from npu_rl.stack.pylocks.pylock_targets import Target
from tests.faults.test_disk import small_disk
from tests.sources.package_index import PackageIndex

OTHER = Target("3.10", "aarch64", "2.34")
VERSION = npu_rl.__version__


def wheel(folder: Path, name: str, version: str = "1", tag: str = "py3-none-any", *requires: str) -> Path:
    files = {
        f"{name}/__init__.py": b"",
        f"{name}-{version}.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: %s\n" % tag.encode(),
        f"{name}-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
        + "".join(f"Requires-Dist: {line}\n" for line in requires).encode(),
    }  # fmt: skip
    path = folder / f"{name}-{version}-{tag}.whl"
    _pack(files, path)
    return path


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all that pip knows."""
    for name in ("links", "taken"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    for name in ("PIP_CONSTRAINT", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "links"


def test_what_another_python_needs_is_found(links: Path, tmp_path: Path) -> None:
    wheel(links, "made_alpha", "1", "py3-none-any", "made-beta>=2; python_version < '3.11'", "made-gamma; extra == 'x'",
          "made-delta; platform_machine == 'x86_64'", "made-epsilon[x]")  # fmt: skip
    wheel(links, "made_beta", "1")
    wheel(links, "made_beta", "2", "cp310-cp310-manylinux_2_17_aarch64")
    wheel(links, "made_beta", "3", "cp311-cp311-manylinux_2_17_aarch64")
    wheel(links, "made_beta", "4", "cp310-cp310-manylinux_2_35_aarch64")
    wheel(links, "made_epsilon", "1", "py3-none-any", "made-zeta; extra == 'x'", "made-alpha")
    wheel(links, "made_zeta", "1", "cp39-abi3-manylinux2014_aarch64")
    needs = _Needs(OTHER, tmp_path / "taken")
    needs.add(["made-alpha", "made-epsilon[x]"])
    rounds = 0
    while needs.wanted:
        needs.download()
        rounds += 1
    names = sorted(
        path.name.partition("-py3")[0].partition("-cp")[0] for path in (tmp_path / "taken").iterdir()
    )
    assert names == ["made_alpha-1", "made_beta-2", "made_epsilon-1", "made_zeta-1"]
    assert rounds == 2


def test_what_is_installed_here_is_taken_at_its_version(tmp_path: Path) -> None:
    from importlib.metadata import version

    needs = _Needs(OTHER, tmp_path)
    needs.add(["typer>=0.1", "tomli>=2.0; python_version < '3.11'", "typer>=999; python_version > '3.11'"])
    assert str(needs.wanted["typer"]) == f"typer=={version('typer')}"
    assert "rich" in needs.wanted and "tomli" in needs.wanted


def locked(links: Path, *names: str) -> LockedPackage:
    files = [
        LockedFile(f"https://x/{name}", hashlib.sha256((links / name).read_bytes()).hexdigest())
        for name in names
    ]
    wheels = tuple(file for file in files if file.name.endswith(".whl"))
    sdist = next((file for file in files if file.name.endswith(".tar.gz")), None)
    return LockedPackage(names[0].split("-")[0].replace("_", "-"), "1", wheels, sdist)


def test_locked_packages_come_with_their_hashes(links: Path, tmp_path: Path) -> None:
    wheel(links, "made_alpha", "1", "cp310-cp310-manylinux_2_17_aarch64")
    wheel(links, "made_alpha", "1", "cp310-cp310-manylinux_2_35_aarch64")
    with tarfile.open(links / "made_source-1.tar.gz", "w:gz") as tar:
        for name in ("setup.py", "PKG-INFO"):  # to run it would fail
            info = tarfile.TarInfo(f"made_source-1/{name}")
            info.size = 5
            tar.addfile(info, io.BytesIO(b"1/0 #"))
    packages = (
        locked(links, "made_alpha-1-cp310-cp310-manylinux_2_17_aarch64.whl"),
        locked(links, "made_source-1.tar.gz"),
    )
    taken = tmp_path / "taken"
    download_packages(Pylock("m", OTHER, "0" * 64, packages), taken)
    assert sorted(path.name for path in taken.iterdir()) == [
        "made_alpha-1-cp310-cp310-manylinux_2_17_aarch64.whl", "made_source-1.tar.gz",
    ]  # fmt: skip
    require_locked([Pylock("m", OTHER, "0" * 64, packages)], taken)
    with pytest.raises(SourceError, match="is not the locked one"):
        require_locked([Pylock("m", OTHER, "0" * 64, packages[:1])], taken)
    other = LockedPackage("made-alpha", "1", (LockedFile("https://x/a.whl", "0" * 64),))
    with pytest.raises(SourceError, match="can't download the packages of m"):
        download_packages(Pylock("m", OTHER, "0" * 64, (other,)), taken)


def test_offline_pip_asks_no_index(links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only folders of find-links count."""
    monkeypatch.delenv("PIP_NO_INDEX")
    wheel(links, "made_alpha")
    with PackageIndex() as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        needs = _Needs(OTHER, tmp_path / "taken", offline=True)
        needs.add(["made-alpha"])
        needs.download()
        assert index.requests == []
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["made_alpha-1-py3-none-any.whl"]


def test_of_what_pip_prints_the_errors_are_shown() -> None:
    printed = "WARNING: a\nERROR: no b from https://me:s3cret@x/simple\nTraceback\nERROR: c\n"
    assert pip_errors(CompletedCommand("", printed, 1)) == "ERROR: no b from https://***@x/simple\nERROR: c"
    assert pip_errors(CompletedCommand("", "killed\n", 1)) == "killed"
    assert pip_errors(CompletedCommand("", "", 1)) is None


def test_a_full_disk_is_told_without_pips_traceback(links: Path, tmp_path: Path) -> None:
    wheel(links, "made_alpha", "1", "py3-none-any", *(f"x{number}" for number in range(2000)))
    with small_disk(tmp_path / "small", 8192):
        needs = _Needs(OTHER, tmp_path / "small")
        needs.add(["made-alpha"])
        with pytest.raises(HostError, match="The disk is full"), disk_errors(tmp_path / "small"):
            needs.download()


def test_what_installs_packages_comes_with_them(
    links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(links, "pip", "99")
    wheel(links, "uv", "99")
    own = wheel(tmp_path / "taken", "npu_rl", VERSION, "py3-none-any", "uv>=0.13; extra == 'uv'")
    monkeypatch.setattr(program_packages, "make_own_wheel", lambda folder, offline: own)
    monkeypatch.setattr(program_packages, "distribution", missing)
    add_program([OTHER], tmp_path / "taken", installer=True)
    names = sorted(path.name for path in (tmp_path / "taken").iterdir())
    assert names == [own.name, "pip-99-py3-none-any.whl", "uv-99-py3-none-any.whl"]


def missing(name: str) -> Distribution:
    raise PackageNotFoundError(name)


def test_tags_of_a_host() -> None:
    found = platforms(OTHER)
    assert found[0] == "manylinux_2_34_aarch64" and "manylinux_2_16_aarch64" not in found
    assert found[-2:] == ["manylinux2014_aarch64", "linux_aarch64"]
    assert "manylinux1_x86_64" in platforms(Target("3.11", "x86_64", "2.28"))


# -- npu-rl's own wheel ------------------------------------------------------------------------------------

PROGRAM = b"#!python\nprint(1)\n"
IN_WHEEL = {
    "npu_rl/__init__.py": b"",
    "npu_rl/_data/manifests/x.dist-info/METADATA": b"a file of somebody's",
    f"npu_rl-{VERSION}.data/scripts/npu-rl": b"#!/bin/sh\nexec\n",
    f"npu_rl-{VERSION}.data/scripts/npu-rl-python": PROGRAM,
    f"npu_rl-{VERSION}.dist-info/METADATA": b"Name: npu-rl\n",
    f"npu_rl-{VERSION}.dist-info/WHEEL": b"Wheel-Version: 1.0\n",
}


def installed(root: Path, shebang: bytes) -> Distribution:
    """What an installer makes of such a wheel."""
    lines = []
    for name, data in IN_WHEEL.items():
        place = root / "lib/python/site-packages" / name
        if ".data/scripts/" in name:
            place = root / "bin" / Path(name).name
            data = data.replace(b"#!python\n", shebang)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        shown = f"../../../bin/{place.name}" if place.parent.name == "bin" else name
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{shown},sha256={digest},{len(data)}\n")
    site = root / "lib/python/site-packages"
    information = site / f"npu_rl-{VERSION}.dist-info"
    for name in ("INSTALLER", "direct_url.json", "REQUESTED"):
        (information / name).write_bytes(b"pip\n")
        lines.append(f"npu_rl-{VERSION}.dist-info/{name},,\n")
    lines.append("npu_rl/__pycache__/__init__.cpython-311.pyc,,\n")
    (information / "RECORD").write_text("".join(lines))
    return Distribution.at(information)


@pytest.mark.parametrize(
    "shebang",
    [b"#!/opt/env/bin/python3\n", b"#!/opt/env/bin/python -E\n",
     b"#!/bin/sh\n'''exec' \"/opt/my env/bin/python\" \"$0\" \"$@\"\n' '''\n"],
)  # fmt: skip
def test_the_wheel_is_made_again_from_what_is_installed(tmp_path: Path, shebang: bytes) -> None:
    found = dict(_installed_files(installed(tmp_path, shebang)))
    assert found == IN_WHEEL
    _pack(found, tmp_path / "again.whl")
    _pack(dict(reversed(IN_WHEEL.items())), tmp_path / "first.whl")
    assert (tmp_path / "again.whl").read_bytes() == (tmp_path / "first.whl").read_bytes()
    with zipfile.ZipFile(tmp_path / "again.whl") as archive:
        record = archive.read(f"npu_rl-{VERSION}.dist-info/RECORD").decode()
        assert archive.namelist() == [*sorted(IN_WHEEL), f"npu_rl-{VERSION}.dist-info/RECORD"]
    assert record.splitlines()[-1] == f"npu_rl-{VERSION}.dist-info/RECORD,,"
    assert _requires(tmp_path / "again.whl") == []


def test_a_changed_installation_makes_no_wheel(tmp_path: Path) -> None:
    found = installed(tmp_path, b"#!/x/python\n")
    (tmp_path / "bin/npu-rl").write_bytes(b"#!/bin/sh\nrm\n")
    with pytest.raises(HostError, match="installation was changed"):
        dict(_installed_files(found))


def test_an_interpreter_without_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from npu_rl.stack.bundles import pip_program

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(HostError, match="has no pip") as caught:
        pip_program.run_pip(["--version"], tmp_path)
    assert sys.executable in str(caught.value)
    assert own_wheel.METADATA.fullmatch("a/b.dist-info/METADATA") is None
