"""The file of a bundle: a tar of regular files with known names, whose first member lists the hashes of the others.

Any tar program writes and unpacks one. Names and kinds are checked here rather than by tarfile's filters, which older
patch versions of the supported Pythons lack.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path

from npu_rl.common.bounded import hash_file, open_file
from npu_rl.common.disk import disk_errors
from npu_rl.common.errors import BundleError

LIST = "SHA256SUMS"
MANIFESTS, PROGRAM, FILES, UNITS, WHEELS = "manifests", "npu-rl", "store/files", "store/units", "wheels"

_LARGEST_LIST = 16 << 20  # bytes
_CHUNK = 1 << 20
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.+!-]*"
_MEMBER = re.compile(
    rf"{MANIFESTS}(?:/{_PART}){{2,13}}"
    rf"|(?:{PROGRAM}|{WHEELS})/{_PART}\.whl"
    rf"|{FILES}/[0-9a-f]{{64}}"
    rf"|{UNITS}/[0-9a-f]{{40}}/pack-[0-9a-f]{{40}}\.pack"
)
_LINE = re.compile("([0-9a-f]{64})  (.+)")


class _Fault(ValueError):
    """The reason why a file is not a bundle."""


def is_member_name(name: str) -> bool:
    """Return whether a file of a bundle may have this name; none leads out of a folder."""
    return _MEMBER.fullmatch(name) is not None


def write_bundle(output: Path, members: Mapping[str, Path]) -> None:
    """Write files (member name -> path), which must not change meanwhile, as a bundle. Raises OSError."""
    listed = "".join(f"{hash_file(path)}  {name}\n" for name, path in sorted(members.items())).encode()
    with tarfile.open(output, "w") as tar:
        tar.addfile(_header(LIST, len(listed)), io.BytesIO(listed))
        for name, path in sorted(members.items()):
            with open_file(path) as file:
                tar.addfile(_header(name, path.stat().st_size), file)


def _header(name: str, size: int) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.size = size
    return header


def unpack_bundle(bundle: Path, folder: Path) -> None:
    """Unpack a bundle into an empty folder, and check each file against the list of hashes.

    Raises:
        BundleError: If the file is damaged, or has a member that a bundle can't have.
        HostError: If the bundle can't be read, or the folder can't be written.
    """
    with disk_errors(bundle), open_file(bundle) as file, disk_errors(folder):
        try:
            with tarfile.open(fileobj=file, mode="r:") as tar:
                _unpack(tar, folder)
        except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
            raise BundleError(
                "The file is not a whole bundle that npu-rl made",
                where=str(bundle),
                why=str(error),
                hint="Copy it again, and compare `sha256sum FILE` where it was made and here.",
            ) from error


def _unpack(tar: tarfile.TarFile, folder: Path) -> None:
    members = iter(tar)
    first = next(members)
    if first.name != LIST or not _is_regular(first) or first.size > _LARGEST_LIST:
        raise _Fault(f"the first member is not {LIST}")
    _copy(tar, first, folder / LIST)
    missing = _parsed((folder / LIST).read_bytes())
    for member in members:
        if not _is_regular(member):
            raise _Fault(f"{member.name[:300]!a} is not a regular file")
        sha256 = missing.pop(member.name, None)
        if sha256 is None:
            raise _Fault(f"{member.name[:300]!a} is not in {LIST}, or there twice")
        place = folder / member.name
        place.parent.mkdir(parents=True, exist_ok=True)
        if _copy(tar, member, place) != sha256:
            raise _Fault(f"{member.name} is damaged: its SHA-256 is not the listed one")
    if missing:
        raise _Fault(f"truncated: {min(missing)} is missing")


def _is_regular(member: tarfile.TarInfo) -> bool:
    """Return whether a member's content is stored as it is; a sparse one could unpack to any size."""
    return member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()


def _copy(tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> str:
    """Write a member's content to a new file, and return its SHA-256."""
    digest = hashlib.sha256()
    content = tar.extractfile(member)
    assert content is not None  # it is a regular file
    with place.open("xb") as file:
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


def _parsed(listed: bytes) -> dict[str, str]:
    """Return the listed files, name -> SHA-256."""
    found: dict[str, str] = {}
    for line in listed.decode("ascii").splitlines():
        match = _LINE.fullmatch(line)
        if match is None or not is_member_name(match[2]) or match[2] in found:
            raise _Fault(f"{LIST} has an invalid or repeated line: {line[:300]!a}")
        found[match[2]] = match[1]
    return found
