"""Reads a source distribution straight from its .tar.gz (PEP 625): nothing is unpacked to disk, nothing is run.

An archive is somebody else's text. It is refused as a whole, with the member's name, when a member could
mean something else on another machine: unsafe names, links, devices, doubles, damage, or sheer size.
"""

from __future__ import annotations

import gzip
import struct
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from npu_rl.errors import SourceError
from npu_rl.sources.member_path import PathLedger, shown

MiB = 1024 * 1024
SUFFIX = ".tar.gz"
_OWNER_MAY_RUN = 0o100
_TAR_HEADER_DATA = 1 * MiB  # long names and pax records: kilobytes in any honest archive
_HEADER_TYPES = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_DAMAGE = (
    tarfile.TarError,
    zlib.error,
    EOFError,
    OSError,
    ValueError,  # numbers and names tarfile can't decode
    ArithmeticError,  # sizes and times no machine number holds
    LookupError,
    struct.error,
    RecursionError,  # nested tar headers
)


@dataclass(frozen=True)
class SdistLimits:
    """What an sdist may grow to. Sizes in bytes.

    ratio: unpacked size over archive size, once more than `ratio_from` bytes have been unpacked.
    """

    members: int = 200_000
    file_bytes: int = 256 * MiB
    total_bytes: int = 2048 * MiB
    ratio: int = 200
    ratio_from: int = 64 * MiB


@dataclass(frozen=True)
class SdistFile:
    """One file: POSIX path below the top folder, its bytes, and whether its owner may execute it."""

    path: str
    data: bytes
    executable: bool


@dataclass(frozen=True)
class Selection:
    """What `select` kept, and the `keep` and `drop` paths that matched no file."""

    files: tuple[SdistFile, ...]
    unmatched_keep: tuple[str, ...]
    unmatched_drop: tuple[str, ...]


class _Unfit(Exception):
    """A reason to refuse the archive, and the member it is about."""

    def __init__(self, why: str, member: str | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.member = member


def read_sdist(
    path: Path, *, limits: SdistLimits | None = None, keep: Sequence[str] = (".",)
) -> Iterator[SdistFile]:
    """The files of an sdist (.tar.gz), in the archive's order.

    keep: files or folders to read (`.` for all). The data of others is not read, but their names and kinds
    are held to the same rules. Damage may show only at the end, so use nothing before the last file is out.

    Errors: SourceError that names the archive, the member and the reason.
    """
    if not is_sdist_name(path.name):
        raise SourceError(
            "Not an sdist format that is read",
            where=path.name,
            why=f"An sdist is a {SUFFIX} (PEP 625).",
            hint=f"Pin a release that has a {SUFFIX}, or take the component from git.",
        )
    limits = limits or SdistLimits()
    wanted = frozenset(_plain(p) for p in keep)
    try:
        yield from _read_tar(path, limits, wanted)
    except _Unfit as refusal:
        raise _refused(path, refusal.why, refusal.member) from None
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise _refused(path, f"it can't be read: {error.strerror}", None) from None
    except _DAMAGE as error:
        raise _refused(path, f"the archive is damaged or truncated: {str(error)!a}", None) from error


def is_sdist_name(filename: str) -> bool:
    """Whether a file of this name is an sdist as PEP 625 has them."""
    return filename.lower().endswith(SUFFIX)


def select(files: Iterable[SdistFile], keep: Sequence[str], drop: Sequence[str]) -> Selection:
    """Only the files at or under the `keep` paths (`.` for all), without those at or under `drop`.

    A drop that only names files outside `keep` counts as unmatched.
    """
    keeps, drops = ({_plain(p): p for p in paths} for paths in (keep, drop))
    hit: set[str] = set()
    kept = []
    for file in files:
        lineage = _lineage(file.path)
        inside = [p for p in lineage if p in keeps]
        if not inside:
            continue
        hit.update(keeps[p] for p in inside)
        dropped = [p for p in lineage if p in drops]
        hit.update("-" + drops[p] for p in dropped)
        if not dropped:
            kept.append(file)
    return Selection(
        files=tuple(kept),
        unmatched_keep=tuple(p for p in keep if p not in hit),
        unmatched_drop=tuple(p for p in drop if "-" + p not in hit),
    )


def _plain(path: str) -> str:
    return path.rstrip("/") or "."


def _lineage(path: str) -> list[str]:
    """The path, its folders, and `.` for the root."""
    found = ["."]
    while path:
        found.append(path)
        path = path.rpartition("/")[0]
    return found


def _wanted(path: str, keep: frozenset[str]) -> bool:
    return not keep.isdisjoint(_lineage(path))


def _refused(path: Path, why: str, member: str | None) -> SourceError:
    return SourceError(
        "An sdist was refused",
        where=f"{path.name}: {shown(member)}" if member is not None else path.name,
        why=why,
        hint="Take the component from git, or lock another sdist. If a download was cut off, fetch it again.",
    )


class _Budget:
    """Counts what an archive grows to, and stops it at the limits."""

    def __init__(self, limits: SdistLimits, packed: int) -> None:
        self.limits = limits
        self.most = min(limits.total_bytes, max(limits.ratio_from, limits.ratio * packed))
        self.unpacked = 0
        self.members = 0

    def unpack(self, size: int) -> None:
        self.unpacked += size
        if self.unpacked > self.limits.total_bytes:
            raise _Unfit(f"it unpacks to more than {self.limits.total_bytes} bytes")
        if self.unpacked > self.most:
            raise _Unfit(f"it unpacks to more than {self.limits.ratio} times its size")

    def member(self, name: str, size: int) -> None:
        self.members += 1
        if self.members > self.limits.members:
            raise _Unfit(f"it has more than {self.limits.members} members")
        if size > self.limits.file_bytes:
            raise _Unfit(f"the file is larger than {self.limits.file_bytes} bytes", name)


class _Readable(Protocol):
    def read(self, size: int = ..., /) -> bytes: ...


class _Metered:
    """An unpacking stream that the budget watches."""

    def __init__(self, stream: _Readable, budget: _Budget) -> None:
        self._stream = stream
        self._budget = budget

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._budget.unpack(len(data))
        return data


class _StrictMember(tarfile.TarInfo):
    """tarfile takes a broken header, or a missing end mark, for the end of the archive. This does not."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _StrictMember:
        member = super().frombuf(buf, encoding, errors)
        if member.size < 0 or (member.type in _HEADER_TYPES and member.size > _TAR_HEADER_DATA):
            raise tarfile.ReadError(f"a header of {member.size} bytes")
        return member

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> _StrictMember:
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise  # the end mark
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"{error}, and no end mark before it") from None


def _read_tar(path: Path, limits: SdistLimits, keep: frozenset[str]) -> Iterator[SdistFile]:
    budget = _Budget(limits, path.stat().st_size)
    ledger = PathLedger()
    found = False
    with gzip.open(path, "rb") as stream:
        metered: Any = _Metered(stream, budget)
        with tarfile.open(
            fileobj=metered, mode="r|", tarinfo=_StrictMember, encoding="utf-8", errors="surrogateescape"
        ) as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # else they pile up, kept or not
                budget.member(member.name, member.size)
                name = _tar_file(member, ledger)
                found = found or name is not None
                if name is not None and _wanted(name, keep):
                    reader = tar.extractfile(member)
                    data = reader.read() if reader is not None else b""
                    yield SdistFile(name, data, bool(member.mode & _OWNER_MAY_RUN))
            _nothing_follows(tar)
    if not found:
        raise _Unfit("it holds no files")


def _tar_file(member: tarfile.TarInfo, ledger: PathLedger) -> str | None:
    """The path of a regular file, None for a folder."""
    kind = _tar_refusal(member)
    if kind:
        raise _Unfit(f"it is {kind}; only files and folders are taken", member.name)
    try:
        if member.isdir():
            ledger.folder(member.name)
            return None
        return ledger.file(member.name)
    except ValueError as error:
        raise _Unfit(str(error), member.name) from None


def _tar_refusal(member: tarfile.TarInfo) -> str | None:
    if member.issym():
        return "a symbolic link"
    if member.islnk():
        return "a hard link"
    if member.isdev():
        return "a device or pipe"
    if member.issparse():
        return "a sparse file"
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE):
        return f"of the unknown kind {member.type!r}"
    return None


def _nothing_follows(tar: tarfile.TarFile) -> None:
    """Read to the end: checksums are checked there, and others might take what follows for members."""
    rest: Any = tar.fileobj
    while chunk := rest.read(64 * 1024):
        if chunk.strip(b"\0"):
            raise _Unfit("there is more data after the end of the archive")
