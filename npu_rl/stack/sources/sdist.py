"""Reading of a source distribution directly from its .tar.gz (PEP 625), without unpacking it or running its code.

An archive is untrusted. It is refused as a whole, with the member's name, if a member could mean something else on
another machine: unsafe names, links, devices, duplicates, damage, or excessive size.
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

from npu_rl.common.bounded import open_file
from npu_rl.common.errors import SourceError
from npu_rl.stack.sources.member_path import PathLedger, shown

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
    ValueError,  # numbers and names that tarfile can't decode
    ArithmeticError,  # sizes and times out of range
    LookupError,
    struct.error,
    RecursionError,  # nested tar headers
)


@dataclass(frozen=True)
class SdistLimits:
    """Limits on an sdist. Sizes are in bytes.

    Attributes:
        members: The number of members.
        file_bytes: The size of one file.
        total_bytes: The unpacked size.
        ratio: Unpacked size over archive size, once more than `ratio_from` bytes have been unpacked.
        ratio_from: The unpacked size from which the ratio is checked.
    """

    members: int = 200_000
    file_bytes: int = 256 * MiB
    total_bytes: int = 2048 * MiB
    ratio: int = 200
    ratio_from: int = 64 * MiB


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


@dataclass(frozen=True)
class Selection:
    """The files that `select` kept.

    Attributes:
        files: The files.
        unmatched_keep: The `keep` paths that matched no file.
        unmatched_drop: The `drop` paths that matched no file.
    """

    files: tuple[SdistFile, ...]
    unmatched_keep: tuple[str, ...]
    unmatched_drop: tuple[str, ...]


class _UnsafeArchive(Exception):
    """A reason to refuse the archive.

    Attributes:
        why: The reason.
        member: The offending member, if it is due to one.
    """

    def __init__(self, why: str, member: str | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.member = member


def read_sdist(
    path: Path, *, limits: SdistLimits | None = None, keep: Sequence[str] = (".",)
) -> Iterator[SdistFile]:
    """Yield the files of an sdist (.tar.gz), in the archive's order.

    Damage may show only at the end, so use nothing before the last file was yielded.

    Args:
        path: The archive.
        limits: Limits on its size.
        keep: Files or folders to read (`.` for all). The data of others is not read, but their names and kinds are also
            checked.

    Raises:
        SourceError: If the archive is refused; with the member and the reason.
    """
    if not is_sdist_name(path.name):
        raise SourceError(
            "Unsupported sdist format",
            where=path.name,
            why=f"An sdist is a {SUFFIX} (PEP 625).",
            hint=f"Pin a release that has a {SUFFIX}, or take the component from git.",
        )
    limits = limits or SdistLimits()
    wanted = frozenset(_without_slash(p) for p in keep)
    try:
        yield from _read_tar(path, limits, wanted)
    except _UnsafeArchive as refusal:
        raise _refusal(path, refusal.why, refusal.member) from None
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise _refusal(path, f"it can't be read: {error.strerror}", None) from None
    except _DAMAGE as error:
        raise _refusal(path, f"the archive is damaged or truncated: {str(error)!a}", None) from error


def is_sdist_name(filename: str) -> bool:
    """Return whether a file name is that of an sdist by PEP 625."""
    return filename.lower().endswith(SUFFIX)


def select(files: Iterable[SdistFile], keep: Sequence[str], drop: Sequence[str]) -> Selection:
    """Return the files at or under the `keep` paths (`.` for all), without those at or under `drop`.

    A drop path that only matches files outside `keep` counts as unmatched.
    """
    keeps, drops = ({_without_slash(p): p for p in paths} for paths in (keep, drop))
    matched: set[str] = set()
    kept = []
    for file in files:
        lineage = _path_and_parents(file.path)
        inside = [p for p in lineage if p in keeps]
        if not inside:
            continue
        matched.update(keeps[p] for p in inside)
        dropped = [p for p in lineage if p in drops]
        matched.update("-" + drops[p] for p in dropped)
        if not dropped:
            kept.append(file)
    return Selection(
        files=tuple(kept),
        unmatched_keep=tuple(p for p in keep if p not in matched),
        unmatched_drop=tuple(p for p in drop if "-" + p not in matched),
    )


def _without_slash(path: str) -> str:
    return path.rstrip("/") or "."


def _path_and_parents(path: str) -> list[str]:
    """Return the path, its folders, and `.` for the root."""
    found = ["."]
    while path:
        found.append(path)
        path = path.rpartition("/")[0]
    return found


def _refusal(path: Path, why: str, member: str | None) -> SourceError:
    return SourceError(
        "An sdist was refused",
        where=f"{path.name}: {shown(member)}" if member is not None else path.name,
        why=why,
        hint="Take the component from git, or lock another sdist. If a download was cut off, fetch it again.",
    )


class _Budget:
    """Count of an archive's unpacked members and bytes, which raises at the limits."""

    def __init__(self, limits: SdistLimits, packed: int) -> None:
        self.limits = limits
        self.most = min(limits.total_bytes, max(limits.ratio_from, limits.ratio * packed))
        self.unpacked = 0
        self.members = 0

    def unpack(self, size: int) -> None:
        self.unpacked += size
        if self.unpacked > self.limits.total_bytes:
            raise _UnsafeArchive(f"it unpacks to more than {self.limits.total_bytes} bytes")
        if self.unpacked > self.most:
            raise _UnsafeArchive(f"it unpacks to more than {self.limits.ratio} times its size")

    def member(self, name: str, size: int) -> None:
        self.members += 1
        if self.members > self.limits.members:
            raise _UnsafeArchive(f"it has more than {self.limits.members} members")
        if size > self.limits.file_bytes:
            raise _UnsafeArchive(f"the file is larger than {self.limits.file_bytes} bytes", name)


class _Readable(Protocol):
    def read(self, size: int = ..., /) -> bytes: ...


class _BudgetedStream:
    """A stream of unpacked bytes that are counted by the budget."""

    def __init__(self, stream: _Readable, budget: _Budget) -> None:
        self._stream = stream
        self._budget = budget

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._budget.unpack(len(data))
        return data


class _StrictMember(tarfile.TarInfo):
    """An archive member that raises for a broken header.

    tarfile takes a broken header, or a missing end mark, for the end of the archive.
    """

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
    with open_file(path) as raw, gzip.open(raw, "rb") as stream:
        budgeted: Any = _BudgetedStream(stream, budget)
        with tarfile.open(
            fileobj=budgeted, mode="r|", tarinfo=_StrictMember, encoding="utf-8", errors="surrogateescape"
        ) as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # else they pile up, kept or not
                budget.member(member.name, member.size)
                name = _tar_file(member, ledger)
                found = found or name is not None
                if name is not None and not keep.isdisjoint(_path_and_parents(name)):
                    reader = tar.extractfile(member)
                    data = reader.read() if reader is not None else b""
                    yield SdistFile(name, data, bool(member.mode & _OWNER_MAY_RUN))
            _require_end(tar)
    if not found:
        raise _UnsafeArchive("it holds no files")


def _tar_file(member: tarfile.TarInfo, ledger: PathLedger) -> str | None:
    """Return the path of a regular file, or None for a folder."""
    kind = _unsupported_kind(member)
    if kind:
        raise _UnsafeArchive(f"it is {kind}; only files and folders are taken", member.name)
    try:
        if member.isdir():
            ledger.folder(member.name)
            return None
        return ledger.file(member.name)
    except ValueError as error:
        raise _UnsafeArchive(str(error), member.name) from None


def _unsupported_kind(member: tarfile.TarInfo) -> str | None:
    if member.issym():
        return "a symbolic link"
    if member.islnk():
        return "a hard link"
    if member.isdev():
        return "a device or pipe"
    if member.issparse():
        return "a sparse file"
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE):
        return f"a member of the unknown kind {member.type!r}"
    return None


def _require_end(tar: tarfile.TarFile) -> None:
    """Read to the end, where checksums are verified, and require that only padding follows.

    Other tools might take data after the end for members.
    """
    rest: Any = tar.fileobj
    while chunk := rest.read(64 * 1024):
        if chunk.strip(b"\0"):
            raise _UnsafeArchive("there is more data after the end of the archive")
