"""Reading of a source distribution directly from its .tar.gz (PEP 625), without unpacking it or running its code.

It is refused as a whole, with the member's name, for a member that is neither a file nor a folder, an unsafe or double
name, damage, or excessive size.
"""

from __future__ import annotations

import gzip
import struct
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from npu_rl.common.bounded import open_file
from npu_rl.common.errors import SourceError
from npu_rl.common.yaml_documents.text_checks import check_path
from npu_rl.stack.git.objects import is_inside

SUFFIX = ".tar.gz"
LARGEST = 1 << 30  # bytes of an archive, and of what it unpacks to
_OWNER_MAY_RUN = 0o100
_DAMAGE = (
    tarfile.TarError,
    zlib.error,
    EOFError,
    OSError,
    ValueError,  # numbers and names that tarfile can't decode
    ArithmeticError,  # sizes and times out of range
    LookupError,
    struct.error,
    RecursionError,  # nested tar headers
)


@dataclass(frozen=True)
class SdistFile:
    """One file.

    Attributes:
        path: The POSIX path below the top folder.
        data: Its bytes.
        executable: Whether its owner may execute it.
    """

    path: str
    data: bytes
    executable: bool


class _Refused(Exception):
    """A reason to refuse the archive."""


def read_sdist(path: Path, *, keep: Sequence[str] = (".",), largest: int = LARGEST) -> Iterator[SdistFile]:
    """Yield the files of an sdist (.tar.gz), in the archive's order.

    Damage may show only at the end, so use nothing before the last file was yielded.

    Args:
        keep: Files or folders to read (`.` for all). Names and kinds of others are also checked.
        largest: The most bytes that it may unpack to.

    Raises:
        SourceError: If the archive is refused; with the member and the reason.
    """
    try:
        with open_file(path) as raw, gzip.open(raw, "rb") as stream:
            yield from _read_tar(_Bounded(stream, largest), keep)
    except _Refused as refusal:
        why = str(refusal)
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        why = f"it can't be read: {error.strerror}"
    except _DAMAGE as error:
        why = f"the archive is damaged or truncated: {str(error)!a}"
    else:
        return
    raise SourceError(
        "An sdist was refused",
        where=path.name,
        why=why,
        hint="Take the component from git, or lock another sdist. If a download was cut off, fetch it again.",
    )


class _Bounded:
    """A stream that refuses to yield more than `left` bytes."""

    def __init__(self, stream: BinaryIO | gzip.GzipFile, left: int) -> None:
        self._stream = stream
        self._left = left

    def read(self, size: int) -> bytes:
        data = self._stream.read(min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise _Refused("it unpacks to more bytes than an sdist may have")
        return data


def _read_tar(stream: Any, keep: Sequence[str]) -> Iterator[SdistFile]:
    wanted = [path.rstrip("/") or "." for path in keep]
    names: dict[str, bool] = {}  # to whether it is a folder
    tops: set[str] = set()
    with tarfile.open(fileobj=stream, mode="r|", encoding="utf-8", errors="surrogateescape") as tar:
        for member in tar:
            if not (member.isdir() or member.isreg()) or member.issparse():
                raise _Refused(f"{member.name!a} is neither a file nor a folder")
            top, _, name = _checked(member.name).partition("/")
            tops.add(top)
            if len(tops) > 1 or not (name or member.isdir()):
                raise _Refused(f"{member.name!a} is outside the top folder of the sdist")
            if names.get(name, member.isdir()) != member.isdir() or (member.isreg() and name in names):
                raise _Refused(f"{name!a} is in the archive twice")
            names[name] = member.isdir()
            if member.isreg() and is_inside(name, wanted):
                reader = tar.extractfile(member)
                yield SdistFile(name, reader.read() if reader else b"", bool(member.mode & _OWNER_MAY_RUN))
    while stream.read(1 << 16):  # gzip's checksum comes last
        pass
    files = {name for name, is_folder in names.items() if not is_folder}
    for name in names:
        while name := name.rpartition("/")[0]:
            if name in files:
                raise _Refused(f"{name!a} is both a file and a folder")
    if not files:
        raise _Refused("it holds no files")


def _checked(name: str) -> str:
    try:
        return check_path(name)
    except ValueError as error:
        raise _Refused(str(error).encode("ascii", "backslashreplace").decode()) from None
