"""npu-rl's own wheel, rebuilt from the installation: a bundle contains the npu-rl that made it.

An installation has every file of its wheel, with its hash in RECORD. Only the first line of a script differs, into
which the installer wrote an interpreter. A checkout, or an editable installation, is built by `pip wheel` instead.
Either way the wheel is packed by `_pack`, so that equal content gives equal bytes.
"""

from __future__ import annotations

import base64
import hashlib
import re
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

import npu_rl
from npu_rl.common.bounded import LARGEST, read_file
from npu_rl.common.bundled import data_root, is_checkout
from npu_rl.common.errors import HostError
from npu_rl.stack.bundles.pip_program import run_pip

METADATA = re.compile(r"[^/]+\.dist-info/METADATA")
_NAME = "npu-rl"
_OF_INSTALLERS = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")
_SHEBANG = re.compile(
    rb"#![^\n]*python[^\n]*\n|#!/bin/sh\n'''exec' [^\n]*\n' '''\n"
)  # the second is for paths that are long or have spaces
_AGAIN = "Install npu-rl again, from its wheel or checkout."


def make_own_wheel(folder: Path, *, offline: bool = False) -> Path:
    """Write the wheel of the running npu-rl into a folder, and return its path.

    Args:
        offline: Whether to query no index for what builds a checkout.

    Raises:
        HostError: If its installation was changed, or pip can't build the checkout.
    """
    installed = _installed()
    files = _built(offline=offline) if installed is None else dict(_installed_files(installed))
    path = folder / f"npu_rl-{npu_rl.__version__}-py3-none-any.whl"
    _pack(files, path)
    return path


def _installed() -> Distribution | None:
    """Return the distribution that the running package belongs to; None for a checkout."""
    package = Path(npu_rl.__file__).resolve()
    try:
        found = distribution(_NAME)
    except PackageNotFoundError:
        found = None
    for file in (found.files or ()) if found is not None else ():
        if file.as_posix() == "npu_rl/__init__.py" and Path(str(file.locate())).resolve() == package:
            return found
    if is_checkout():
        return None
    raise HostError(
        "npu-rl's own wheel can't be made again",
        where=str(package.parent),
        why="No installation lists these files.",
        hint=_AGAIN,
    )


def _installed_files(installed: Distribution) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of each file of the wheel that was installed."""
    for file in installed.files or ():
        if file.suffix == ".pyc" or _is_of_installer(file):
            continue
        place = Path(str(file.locate()))
        data = read_file(place, LARGEST)
        if file.hash is not None and _hash(data) != file.hash.value:
            raise HostError("npu-rl's installation was changed", where=str(place), hint=_AGAIN)
        if file.parts[0] == "..":
            data = _SHEBANG.sub(b"#!python\n", data, count=1) if _SHEBANG.match(data) else data
            yield f"npu_rl-{npu_rl.__version__}.data/scripts/{file.name}", data
        else:
            yield file.as_posix(), data


def _built(*, offline: bool) -> dict[str, bytes]:
    """Return the files of the wheel that pip builds from the checkout."""
    with tempfile.TemporaryDirectory(prefix="npu-rl-wheel-") as name:
        folder = Path(name)
        words = ["wheel", "--no-deps", "--wheel-dir", str(folder)]
        words += ["--no-index", "--no-build-isolation"] if offline else []
        done = run_pip([*words, str(data_root())], folder)
        found = sorted(folder.glob("npu_rl-*.whl"))
        if done.code or not found:
            raise HostError(
                "pip can't build npu-rl's wheel",
                where=str(data_root()),
                why=done.stderr.strip()[-2000:] or None,
                hint="pip needs hatchling for it: "
                + (
                    "without an index, installed beside npu-rl."
                    if offline
                    else "the index that it is configured for has it."
                ),
            )
        with zipfile.ZipFile(found[0]) as archive:
            return {
                name: archive.read(name)
                for name in archive.namelist()
                if not _is_of_installer(PurePosixPath(name))
            }


def _is_of_installer(file: PurePosixPath) -> bool:
    """Return whether a file is written by an installer, or by npu-rl when it packs the wheel."""
    return len(file.parts) == 2 and file.parts[0].endswith(".dist-info") and file.name in _OF_INSTALLERS


def _pack(files: Mapping[str, bytes], path: Path) -> None:
    """Write a wheel that depends on its files alone: sorted, undated, and not compressed, since zlibs differ."""
    (information,) = {
        name.partition("/")[0] for name in files if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)
    }
    record = f"{information}/RECORD"
    lines = [f"{name},sha256={_hash(data)},{len(data)}\n" for name, data in sorted(files.items())]
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (*sorted(files.items()), (record, "".join([*lines, f"{record},,\n"]).encode())):
            entry = zipfile.ZipInfo(name)
            entry.create_system = 3
            entry.external_attr = (0o100755 if "/scripts/" in name else 0o100644) << 16
            archive.writestr(entry, data)


def _hash(data: bytes) -> str:
    """Return the SHA-256 in RECORD's form."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
